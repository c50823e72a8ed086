module gosec

go 1.26.8

require (
	github.com/securego/gosec/v2 v2.29.0
	golang.org/x/tools v0.49.0
)

require (
	github.com/ccojocar/zxcvbn-go v1.0.4 // indirect
	golang.org/x/mod v0.40.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
