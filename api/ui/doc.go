// Package ui is the dashboard: pages that the server renders, for people. It shows what runs, what waits and why, the history of
// each job and pipeline, and has buttons that send what the API offers. It changes nothing itself: a button is a request to the
// API's own routes, and whoever may not do a thing sees no button for it.
//
// The pages can be read without JavaScript. With it they follow the API's streams, and where those cannot be had, they look
// every five seconds.
//
// Everything comes from the program itself: no script, style or font of anybody else, and none inside a page, so that the content
// security policy can forbid both. Whatever jobs carry is text, never markup. All links are relative: the dashboard works below any
// prefix.
package ui
