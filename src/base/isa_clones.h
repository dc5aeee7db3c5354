// Loops that the compiler turns into SIMD, built for the widest registers and chosen at load time.
#pragma once

// Marks a function whose loops are worth it. Lanes are independent and nothing is contracted, so every clone
// gives the same bits. Sanitizers run before the chooser could.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define QUATRAIN_ISA_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QUATRAIN_ISA_CLONES
#endif
