// Linears that share one input, on the GPU: transform, codes, products.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/linear_parts.h"
#include "engine/weight_source.h"
#include "ops/cuda/dense_gemm.h"
#include "ops/cuda/device_activations.h"
#include "ops/cuda/quantize_rows.h"
#include "ops/cuda/row_transforms.h"
#include "ops/cuda/zipper_decode.h"
#include "ops/cuda/zipper_product.h"

namespace quatrain {

/// The stream of an engine and the memory that all its linears share, planned while they load, so that a
/// forward pass allocates nothing.
class CudaScratch {
 public:
  /// `rows`: most rows of a product; `threads`: for loading, as ThreadPool takes it; `invariant`: products
  /// add in an order that does not depend on their number of rows (`rows` must then be at least
  /// DenseDeviceMatrix::kInvariantTokens).
  CudaScratch(int64_t rows, int threads, bool invariant);
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// For loading.
  ThreadPool& threads() { return threads_; }
  const ops::CublasHandle& cublas() const { return *cublas_; }
  int64_t rows() const { return rows_; }
  bool invariant() const { return invariant_; }
  /// Whether kernels may start while the one before them still runs.
  bool overlap() const { return overlap_; }

  void plan_codes(int64_t width, int64_t group);
  void plan_rows(int64_t width);
  void plan_product(int64_t outputs, int64_t columns);
  /// Allocates what was planned.
  void allocate();

  ops::DeviceActivations& codes(int64_t width, int64_t group) { return codes_.at({width, group}); }
  float* values() { return values_.data(); }          // [rows, widest]
  __nv_bfloat16* halves() { return halves_.data(); }  // the same
  ops::ZipperWorkspace& workspace() { return *workspace_; }

 private:
  int64_t rows_;
  bool invariant_, overlap_ = false;
  ThreadPool threads_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<ops::CublasHandle> cublas_;
  std::map<std::pair<int64_t, int64_t>, ops::DeviceActivations> codes_;
  int64_t widest_ = 0, outputs_ = 0, columns_ = 0, partials_ = 0;
  ops::DeviceBuffer<float> values_;
  ops::DeviceBuffer<__nv_bfloat16> halves_;
  std::unique_ptr<ops::ZipperWorkspace> workspace_;
};

/// Where a linear's input comes from: FP32 rows as they are, rows to be normed (after `add` has been added to
/// them), gates and ups to be multiplied, or codes that stand where codes_target() said.
struct LinearInput {
  enum class Kind { Plain, Norm, Gate, Codes };
  Kind kind = Kind::Plain;
  const float* x = nullptr;
  int64_t stride = 0;
  const float* add = nullptr;         // Norm: [rows, width]
  float* sum = nullptr;               // x + add, [rows, width], not x
  float epsilon = 0;                  // Norm
  bool gelu = false;                  // Gate
  unsigned long long* bad = nullptr;  // as in ops::RowOptions
};

class CudaLinear {
 public:
  CudaLinear() = default;
  /// `gain`: of the norm before, where the input is normed; else empty. Every mismatch of shape, group or
  /// transform is an Error that names the linear.
  CudaLinear(const WeightSource& source, std::span<const LinearShape> linears, std::span<const float> gain,
             CudaScratch& scratch);
  /// Adds one matrix below the others.
  void add(LinearPart&& part, std::span<const float> gain, const WeightSource& source, CudaScratch& scratch);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  /// Bytes of weights that one pass reads.
  int64_t bytes() const;
  /// Parts that no integer kernel takes, which run in FP32.
  const std::vector<std::string>& slow_parts() const { return slow_; }
  /// The matrix of the only part, where it is dense: what a tied embedding reads.
  const ops::DenseDeviceMatrix* dense() const;

  /// y [rows, outputs()], rows `y_stride` floats apart.
  void run(LinearInput input, int64_t rows, float* y, int64_t y_stride, CudaScratch& scratch) const;

  /// How a kernel before this linear makes its codes itself: of a plain input, or of gates and ups with their
  /// function still to be said.
  struct CodesTarget {
    ops::RowOptions options;
    ops::DeviceActivations* codes = nullptr;
  };
  /// Nothing where the parts want different codes, or something else than a quantiser makes them.
  std::optional<CodesTarget> codes_target(CudaScratch& scratch) const;
  /// run() of gates and ups that leaves codes for `next`, whose input is of kind Gate with this gelu and bad;
  /// false, and nothing done, where no kernel does both.
  bool run_gated(const LinearInput& input, int64_t rows, const CudaLinear& next, bool gelu,
                 unsigned long long* bad, CudaScratch& scratch) const;

 private:
  // How the input of consecutive parts is prepared.
  struct Stage {
    Transform transform;
    ActivationPolicy activation;
    bool integer = false;                            // codes for the zipper GEMM; else values
    bool fused = false;                              // the quantiser does all of it
    std::shared_ptr<ops::DeviceBuffer<float>> gain;  // of the norm, times a Hadamard's signs where fused
    std::shared_ptr<ops::DeviceHadamard> hadamard;
    std::shared_ptr<ops::DeviceBlockTransform> blocks;
  };
  struct Part {
    size_t stage = 0;
    int64_t offset = 0;  // of its outputs in y
    std::unique_ptr<ops::ZipperMatrix> zipper;
    std::unique_ptr<ops::DenseDeviceMatrix> dense;
  };
  static ops::RowOptions options_of(const Stage& stage, const LinearInput& input);
  void prepare(const Stage& stage, LinearInput& input, int64_t rows, bool bf16, CudaScratch& scratch) const;
  /// Where the part's product norms the input itself: what it is told.
  std::optional<ops::NormedRows> normed_rows(const Part& part, const LinearInput& input, int64_t rows,
                                             const CudaScratch& scratch) const;

  int64_t inputs_ = 0, outputs_ = 0;
  std::vector<Stage> stages_;
  std::vector<Part> parts_;
  std::vector<std::string> slow_;
};

}  // namespace quatrain
