// Balanced transforms: the closed form that makes quantisation noise on both sides of a product smallest.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "base/thread_pool.h"

namespace quatrain {

/// FP64 [n, n], orthogonal, first row constant, the rest random: x <- x Q turns the first channel into one
/// offset of all outputs. A Hadamard matrix with permuted columns, permuted and negated rows where one of
/// order n exists and `hadamard` is set, else an orthogonalised random matrix.
torch::Tensor offset_rotation(int64_t n, uint64_t seed, bool hadamard = true);

/// S^-1 # G = S^-1/2 (S^1/2 G S^1/2)^1/2 S^-1/2 of symmetric positive definite S, G: FP64 [..., n, n].
torch::Tensor geometric_mean(const torch::Tensor& s, const torch::Tensor& g);

/// The same when A must be diagonal: s of x <- x / s, W <- W diag(s), s_j = (S_jj / G_jj)^(1/4), which makes
/// sum_j S_jj / s_j^2 times sum_j G_jj s_j^2 least (QuIP's rescaling, arXiv 2307.13304). Both diagonals get
/// `damping` times their mean first. s, g: FP64 [n], from 0; returns FP64 [n], above 0.
torch::Tensor balancing_scale(const torch::Tensor& s, const torch::Tensor& g, double damping);

/// The transform x <- x A, W <- W A^-T of a product x W^T with S = E[x^T x] and G = W^T W (of every matrix
/// that shares the input): noise on x A meets A^-1 G A^-T, noise on the weights meets A^T S A, and
/// tr(A^T S A) tr(A^-1 G A^-T) is least for A A^T = S^-1 # G. A is then turned into the eigenbasis of A^T S
/// A, largest first, and by offset_rotation(). Both get `damping` times their mean diagonal first. For keys S
/// is their covariance and G the queries' second moments.
/// s, g: FP64 [n, n] or [blocks, n, n], the blocks on the threads of `pool`; returns the same shape.
torch::Tensor balance(const torch::Tensor& s, const torch::Tensor& g, double damping, uint64_t seed,
                      ThreadPool* pool = nullptr);

}  // namespace quatrain
