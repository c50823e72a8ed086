// Package floors holds nothing but the test of the floor plan: which package of this module may import which. Imports
// point down only, and a new arrow is a decision that shows in the test's table.
package floors
