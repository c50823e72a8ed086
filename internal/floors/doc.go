// Package floors contains only a test of the layering, which defines which packages of this module may import which others. Imports may
// only point downwards. A new import between layers is a deliberate decision that requires a change to the test's table.
package floors
