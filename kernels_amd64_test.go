package safetensors

func init() {
	has := hasVector
	setVector = func(on bool) bool {
		hasVector = on && has
		return hasVector
	}
}
