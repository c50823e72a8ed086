// Package ui is the dashboard, a set of server-rendered pages. It shows which jobs are running, which are waiting and why, and the history
// of each job and pipeline. Its buttons send requests to the API; the package itself changes nothing. Visitors see only the buttons that
// they may use.
//
// The pages work without JavaScript. With JavaScript they follow the API's streams, or poll every five seconds where streams are not
// available.
//
// All scripts, styles and fonts are served by the program and none are inline, so the content security policy can forbid everything else.
// The content of jobs is always rendered as text, never as markup. All links are relative, so the dashboard works below any prefix.
package ui
