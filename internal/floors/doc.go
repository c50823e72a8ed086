// Package floors contains only tests of this module's source code, above all of the layering, which defines which packages may import which
// others. Imports may only point downwards. A new import between layers is a deliberate decision that requires a change to the test's
// table.
package floors
