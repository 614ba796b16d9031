//go:build race

package safetensors_test

func init() { raceDetector = true }
