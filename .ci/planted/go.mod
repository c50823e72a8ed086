module github.com/trapeze-run/trapeze/.ci/planted

go 1.26
