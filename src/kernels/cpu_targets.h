// The instruction sets every kernel source is compiled for. Include before hwy/highway.h and hwy/foreach_target.h.
//
// EMU128 is plain C++ and runs anywhere; SSE4, AVX2 (with FMA and F16C), AVX3 (AVX-512 F/BW/DQ/VL) and AVX3_DL (Ice Lake,
// Zen 4: VBMI, VNNI) are chosen at run time. SSSE3 is left out to keep compilation short.
#pragma once

#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
