// Hadamard matrices of the orders that model widths need, from constructions instead of tables: Paley I and
// II over GF(p^k), times Sylvester's doubling. Shared by the quantiser (merging) and the engine (online
// transforms).
#pragma once

#include <cstdint>
#include <vector>

namespace quatrain {

/// order = base * 2^power with the largest power that exists; H = base matrix (x) Sylvester(2^power): entry
/// (i1 2^power + i2, j1 2^power + j2) is base[i1, j1] * (-1)^popcount(i2 & j2).
struct HadamardOrder {
  int64_t base = 1;
  int power = 0;
};

/// Whether these constructions give a Hadamard matrix of this order.
bool hadamard_exists(int64_t order);

/// Throws, naming the order and the largest power of two that divides it, where none is known here.
HadamardOrder factor_hadamard_order(int64_t order);

/// The base matrix [base, base], entries +-1, row-major, first row all ones. Paley I (base - 1 a prime power
/// = 3 mod 4) or Paley II (base / 2 - 1 a prime power = 1 mod 4); primes before prime powers, I before II.
/// Columns are negated so that the first row is constant. base = 1 gives [1].
std::vector<int8_t> hadamard_base_matrix(int64_t base);

/// The whole matrix [order, order], H H^T = order * I, first row all ones.
std::vector<int8_t> hadamard_matrix(int64_t order);

/// The signs of a randomised transform of `width` columns in blocks of `order`: SplitMix64(seed).sign() in
/// column order. `offset`: the first sign of every block is +1, so that the block's first channel adds one
/// constant to all of its outputs, which an asymmetric quantiser's zero absorbs (OffQ). The transform of a
/// row vector is x <- x D H / sqrt(order) in every block.
std::vector<float> hadamard_signs(int64_t width, int64_t order, uint64_t seed, bool offset);

}  // namespace quatrain
