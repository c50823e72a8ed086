//go:build !long

package migrate_test

// cutStride determines the calls at which migrations are cancelled: each number is about 1+cutStride times the previous one.
const cutStride = 4
