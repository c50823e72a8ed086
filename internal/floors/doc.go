// Package floors contains only the test of the layers, which defines which package of this module may import which. Imports may only point
// downwards. A new import between layers is a decision that requires a change to the test's table.
package floors
