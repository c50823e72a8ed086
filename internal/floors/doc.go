// Package floors holds only the test of the layers: which package of this module may import which. Imports point down
// only. A new import between layers is a decision that shows in the test's table.
package floors
