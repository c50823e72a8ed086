// Package ui is the dashboard: pages that the server renders. It shows which jobs run, which wait and why, and the history of each
// job and pipeline. Its buttons send requests to the API; the package itself changes nothing. A visitor sees only the buttons that
// it may use.
//
// The pages can be read without JavaScript. With it they follow the API's streams, or poll every five seconds where streams are not
// available.
//
// The program serves all scripts, styles and fonts itself and puts none inline, so that the content security policy can forbid
// everything else. The content of jobs is always text, never markup. All links are relative: the dashboard works below any prefix.
package ui
