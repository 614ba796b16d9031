module github.com/go-safetensors/safetensors/benchmarks

go 1.26.0

require (
	github.com/go-safetensors/safetensors v0.0.0
	github.com/gomlx/go-huggingface v0.3.2
	github.com/nlpodyssey/safetensors v0.0.0-20250209183917-bfb01cc25f7c
	github.com/x448/float16 v0.8.4
)

require (
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/gofrs/flock v0.13.0 // indirect
	github.com/gomlx/gomlx v0.26.1-0.20260114072028-dd1b582c66f7 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	golang.org/x/exp v0.0.0-20261113113407-e3970619a1a4 // indirect
	golang.org/x/sys v0.50.0 // indirect
	k8s.io/klog/v2 v2.130.1 // indirect
)

replace github.com/go-safetensors/safetensors => ..
