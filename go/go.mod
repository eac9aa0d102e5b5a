module github.com/wireloom/wireloom/go

go 1.24
