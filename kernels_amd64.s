#include "textflag.h"

// Each of these converts the whole blocks of 16 elements that src has. They
// touch nothing but src and dst, at any alignment.

// func bf16ToF32AVX2(dst, src []byte)
TEXT ·bf16ToF32AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $5, CX
	JZ   done

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER

done:
	RET

// func bf16ToF32Far(dst, src []byte)
// It is bf16ToF32AVX2, but writes past the caches. dst is at a multiple of 32.
TEXT ·bf16ToF32Far(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $5, CX
	JZ   done

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVNTDQ  Y0, (DI)
	VMOVNTDQ  Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	DECQ      CX
	JNZ       loop
	SFENCE
	VZEROUPPER

done:
	RET

// func f16ToF32AVX2(dst, src []byte)
TEXT ·f16ToF32AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $5, CX
	JZ   done

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER

done:
	RET

// func f16ToF32Far(dst, src []byte)
// It is f16ToF32AVX2, but writes past the caches. dst is at a multiple of 32.
TEXT ·f16ToF32Far(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $5, CX
	JZ   done

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVNTPS  Y0, (DI)
	VMOVNTPS  Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	DECQ      CX
	JNZ       loop
	SFENCE
	VZEROUPPER

done:
	RET

// func f32ToF16AVX2(dst, src []byte)
TEXT ·f32ToF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $6, CX
	JZ   done

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	VCVTPS2PH $0, Y0, (DI)   // 0: to nearest even
	VCVTPS2PH $0, Y1, 16(DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER

done:
	RET

// func f32ToBF16AVX2(dst, src []byte)
TEXT ·f32ToBF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ src_base+24(FP), SI
	MOVQ src_len+32(FP), CX
	SHRQ $6, CX
	JZ   done

	VPCMPEQD Y15, Y15, Y15
	VPSRLD   $31, Y15, Y14 // 1
	VPSRLD   $17, Y15, Y13 // 0x7fff
	VPSLLD   $6, Y14, Y12  // 0x40, the quiet bit of a BF16

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	VPSRLD    $16, Y0, Y2
	VPSRLD    $16, Y1, Y3
	VPAND     Y14, Y2, Y4
	VPAND     Y14, Y3, Y5
	VPADDD    Y13, Y4, Y4
	VPADDD    Y13, Y5, Y5
	VPADDD    Y0, Y4, Y4
	VPADDD    Y1, Y5, Y5
	VPSRLD    $16, Y4, Y4         // rounded
	VPSRLD    $16, Y5, Y5
	VPOR      Y12, Y2, Y2         // quieted
	VPOR      Y12, Y3, Y3
	VCMPPS    $3, Y0, Y0, Y0      // 3: is either NaN?
	VCMPPS    $3, Y1, Y1, Y1
	VPBLENDVB Y0, Y2, Y4, Y4
	VPBLENDVB Y1, Y3, Y5, Y5
	VPACKUSDW Y5, Y4, Y4
	VPERMQ    $0xd8, Y4, Y4       // packing went by halves
	VMOVDQU   Y4, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER

done:
	RET
