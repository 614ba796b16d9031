//go:build !amd64

package safetensors

func bf16ToF32Vector(dst, src []byte, far bool) int { return 0 }
func f16ToF32Vector(dst, src []byte, far bool) int  { return 0 }
func f32ToBF16Vector(dst, src []byte) int           { return 0 }
func f32ToF16Vector(dst, src []byte) int            { return 0 }
