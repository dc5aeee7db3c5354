#include "engine/cuda/cuda_linear.h"

#include <algorithm>

#include "base/error.h"
#include "engine/transform.h"
#include "ops/cuda/fake_quantize.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/row_ops.h"

namespace quatrain {
namespace {

constexpr int64_t kWidestQuantizer = 32768;  // columns of a row
constexpr int64_t kLeastFusedHadamard = 8;
constexpr int64_t kWarpHadamard = 256;  // the widest that needs no shared memory

// Whether the quantisers and the zipper GEMM take these groups.
bool zipper_fits(const NibblePlanes& planes, const ActivationPolicy& activation) {
  const int64_t columns = planes.columns, weight = planes.weight_group, group = activation.group;
  const auto whole_row = [columns](int64_t g) { return g == 0 || g >= columns; };
  return columns <= kWidestQuantizer &&
         (whole_row(weight) || weight == 32 || weight == 64 || weight % 128 == 0) &&
         (whole_row(group) || group == 32 || group == 64 || group == 128 || group == 256);
}

}  // namespace

CudaScratch::CudaScratch(int64_t rows, int threads, bool invariant)
    : rows_(rows), invariant_(invariant), threads_(threads) {
  ops::gpu_processors();  // says what is wrong with the GPU before anything else fails
  overlap_ = ops::gpu_overlaps_kernels();
  ops::cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  cublas_ = std::make_unique<ops::CublasHandle>(stream_);
}

CudaScratch::~CudaScratch() {
  cublas_.reset();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaScratch::plan_codes(int64_t width, int64_t group) {
  if (!codes_.contains({width, group}))
    codes_.emplace(std::pair(width, group), ops::DeviceActivations(rows_, width, group));
}
void CudaScratch::plan_rows(int64_t width) {
  widest_ = std::max(widest_, width);
}
void CudaScratch::plan_product(int64_t outputs, int64_t columns) {
  outputs_ = std::max(outputs_, outputs);
  if (!invariant_) {
    columns_ = std::max(columns_, columns);
    return;
  }
  const auto cut = [](int64_t size, int64_t by) { return (size + by - 1) / by; };
  partials_ = std::max(
      partials_, ops::invariant_partials(cut(outputs, ops::kTileRows), cut(columns, ops::kStepColumns), rows_,
                                         ops::gpu_processors()));
}
void CudaScratch::allocate() {
  values_ = ops::DeviceBuffer<float>(static_cast<size_t>(rows_ * widest_));
  halves_ = ops::DeviceBuffer<__nv_bfloat16>(static_cast<size_t>(rows_ * widest_));
  workspace_ = std::make_unique<ops::ZipperWorkspace>(std::max<int64_t>(outputs_, 1), rows_, columns_);
  if (partials_ > std::ssize(workspace_->partial))
    workspace_->partial = ops::DeviceBuffer<float>(static_cast<size_t>(partials_));
}

CudaLinear::CudaLinear(const WeightSource& source, std::span<const LinearShape> linears,
                       std::span<const float> gain, CudaScratch& scratch) {
  load_linear_parts(source, linears, [&](LinearPart&& part) { add(std::move(part), gain, source, scratch); });
}

void CudaLinear::add(LinearPart&& linear, std::span<const float> gain, const WeightSource& source,
                     CudaScratch& scratch) {
  const ActivationPolicy& activation = linear.policy.activation;
  const Transform& transform = linear.policy.input_transform;
  require(activation.bits == 4 || activation.bits == 8 || activation.bits == 16,
          "{}: activation bits: {} is not 4, 8 or 16", linear.name, activation.bits);
  check_transform(transform, linear.columns, linear.name);
  const bool integer =
      linear.planes.has_value() && activation.bits < 16 && zipper_fits(*linear.planes, activation);
  if (stages_.empty() || !(stages_.back().transform == transform) ||
      !(stages_.back().activation == activation) || stages_.back().integer != integer) {
    Stage stage{transform, activation, integer, integer, nullptr, nullptr, nullptr};
    std::vector<float> scale(gain.begin(), gain.end());
    try {
      if (transform.kind == "block") {
        const BlockMatrices blocks = load_block_matrices(transform, linear.columns, linear.name, &source);
        stage.blocks = std::make_shared<ops::DeviceBlockTransform>(blocks.order, blocks.values,
                                                                   blocks.matrix_of_block, blocks.offset);
        stage.fused = false;
      } else if (transform.kind != "none") {
        stage.hadamard = std::make_shared<ops::DeviceHadamard>(
            linear.columns, transform.order, transform.seed, transform.kind == "grouped-offset-hadamard");
        // A wide one keeps the whole row in shared memory.
        const bool fits = transform.order <= kWarpHadamard || linear.columns * 4 <= ops::gpu_shared_bytes();
        stage.fused =
            integer && fits && stage.hadamard->power_of_two() && transform.order >= kLeastFusedHadamard;
        if (stage.fused) {
          const std::vector<float>& signs = stage.hadamard->signs();
          if (scale.empty()) scale.assign(signs.size(), 1.0f);
          std::transform(scale.begin(), scale.end(), signs.begin(), scale.begin(), std::multiplies<float>());
        }
      }
    } catch (const Error& error) {
      fail("{}: {}", linear.name, error.what());
    }
    if (!scale.empty()) stage.gain = std::make_shared<ops::DeviceBuffer<float>>(scale.data(), scale.size());
    stages_.push_back(std::move(stage));
  }
  if (integer) scratch.plan_codes(linear.columns, activation.group);
  scratch.plan_rows(linear.columns);
  scratch.plan_product(linear.rows, linear.columns);

  Part part;
  part.stage = stages_.size() - 1;
  part.offset = outputs_;
  try {
    if (integer) {
      part.zipper = std::make_unique<ops::ZipperMatrix>(*linear.planes, activation.group);
    } else if (linear.planes) {
      const NibblePlanes& planes = *linear.planes;
      const auto read = [&planes](int64_t begin, int64_t end, float* out) {
        for (int64_t row = begin; row < end; ++row)
          planes.dequantize_row(row, out + (row - begin) * planes.columns);
      };
      part.dense = std::make_unique<ops::DenseDeviceMatrix>(linear.rows, linear.columns, read, planes.bias,
                                                            scratch.threads());
      if (activation.bits < 16) slow_.push_back(linear.name);
    } else {
      part.dense = std::make_unique<ops::DenseDeviceMatrix>(linear.rows, linear.columns, linear.read,
                                                            linear.bias, scratch.threads());
    }
  } catch (const Error& error) {
    fail("{}: {}", linear.name, error.what());
  }
  inputs_ = linear.columns;
  outputs_ += linear.rows;
  parts_.push_back(std::move(part));
}

int64_t CudaLinear::bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.zipper ? part.zipper->bytes() : part.dense->bytes();
  return bytes;
}

const ops::DenseDeviceMatrix* CudaLinear::dense() const {
  return parts_.size() == 1 ? parts_.front().dense.get() : nullptr;
}

ops::RowOptions CudaLinear::options_of(const Stage& stage, const LinearInput& input) {
  return {stage.activation,
          stage.gain ? stage.gain->data() : nullptr,
          stage.hadamard ? static_cast<int>(stage.hadamard->order()) : 0,
          input.gelu,
          input.add,
          input.sum,
          input.bad};
}

namespace {
// The sums stand in place of x for parts to come.
void add_done(LinearInput& input, int64_t width) {
  if (input.add == nullptr) return;
  input.x = input.sum;
  input.stride = width;
  input.add = nullptr;
}

bool takes_few(const CudaScratch& scratch) {
  return !scratch.invariant() && ops::gpu_kernels() == ops::GpuKernels::Wgmma;
}
}  // namespace

std::optional<ops::NormedRows> CudaLinear::normed_rows(const Part& part, const LinearInput& input,
                                                       int64_t rows, const CudaScratch& scratch) const {
  const Stage& stage = stages_[part.stage];
  if (!part.zipper || !stage.fused || input.kind != LinearInput::Kind::Norm || !takes_few(scratch)) return {};
  const ops::NormedRows normed{input.x, rows, input.stride, input.epsilon, options_of(stage, input)};
  if (!ops::decode_takes_rows(*part.zipper, normed)) return {};
  return normed;
}

std::optional<CudaLinear::CodesTarget> CudaLinear::codes_target(CudaScratch& scratch) const {
  if (stages_.size() != 1 || !stages_.front().fused) return {};
  const Stage& stage = stages_.front();
  return CodesTarget{options_of(stage, {}), &scratch.codes(inputs_, stage.activation.group)};
}

bool CudaLinear::run_gated(const LinearInput& input, int64_t rows, const CudaLinear& next, bool gelu,
                           unsigned long long* bad, CudaScratch& scratch) const {
  if (parts_.size() != 1 || !parts_.front().zipper || !takes_few(scratch)) return false;
  const Part& part = parts_.front();
  std::optional<CodesTarget> target = next.codes_target(scratch);
  if (!target) return false;
  target->options.gelu = gelu;
  target->options.bad = bad;
  const int processors = scratch.workspace().processors;
  if (!ops::decode_takes_gate(*part.zipper, rows, target->options, *target->codes, processors)) return false;
  const std::optional<ops::NormedRows> normed = normed_rows(part, input, rows, scratch);
  ops::DecodeInput from;
  if (normed) {
    from.rows = &*normed;
  } else {
    LinearInput rest = input;
    prepare(stages_.front(), rest, rows, false, scratch);
    from.codes = &scratch.codes(inputs_, stages_.front().activation.group);
  }
  ops::zipper_decode_gated(*part.zipper, from, target->options, processors, *target->codes,
                           {scratch.stream(), scratch.overlap()});
  return true;
}

// Leaves codes, or values in scratch.values() (scratch.halves() where bf16).
void CudaLinear::prepare(const Stage& stage, LinearInput& input, int64_t rows, bool bf16,
                         CudaScratch& scratch) const {
  cudaStream_t stream = scratch.stream();
  const float* gain = stage.gain ? stage.gain->data() : nullptr;
  if (stage.fused) {
    ops::DeviceActivations& codes = scratch.codes(inputs_, stage.activation.group);
    codes.tokens = rows;
    const ops::RowOptions options = options_of(stage, input);
    if (input.kind == LinearInput::Kind::Norm)
      ops::rms_norm_quantize(input.x, input.stride, input.epsilon, options, codes, stream, scratch.overlap());
    else if (input.kind == LinearInput::Kind::Gate)
      ops::silu_mul_quantize(input.x, input.stride, options, codes, stream, scratch.overlap());
    else
      ops::quantize_rows(input.x, input.stride, options, codes, stream, scratch.overlap());
    ops::prepare_product(codes, stage.activation.bits, stream);
    add_done(input, inputs_);
    return;
  }
  const bool transformed = stage.hadamard || stage.blocks;
  float* values = scratch.values();
  const bool straight_to_bf16 = bf16 && !transformed && stage.activation.bits == 16;
  if (input.kind == LinearInput::Kind::Norm) {
    if (straight_to_bf16)
      ops::rms_norm_rows(input.x, input.add, input.sum, rows, inputs_, gain, input.epsilon, scratch.halves(),
                         input.bad, stream);
    else
      ops::rms_norm_rows(input.x, input.add, input.sum, rows, inputs_, gain, input.epsilon, values, input.bad,
                         stream);
    add_done(input, inputs_);
  } else if (input.kind == LinearInput::Kind::Gate) {
    if (straight_to_bf16)
      ops::gate_rows(input.x, rows, inputs_, input.gelu, scratch.halves(), stream);
    else
      ops::gate_rows(input.x, rows, inputs_, input.gelu, values, stream);
  } else if (straight_to_bf16) {
    ops::copy_rows(input.x, rows, inputs_, input.stride, scratch.halves(), stream);
  } else {
    ops::copy_rows(input.x, rows, inputs_, input.stride, values, stream);
  }
  if (straight_to_bf16) return;
  if (stage.hadamard) stage.hadamard->apply(values, rows, inputs_, stream);
  if (stage.blocks) stage.blocks->apply(values, rows, inputs_, stream);
  if (stage.integer) {
    ops::DeviceActivations& codes = scratch.codes(inputs_, stage.activation.group);
    codes.tokens = rows;
    ops::RowOptions options;
    options.policy = stage.activation;
    options.bad = input.bad;
    ops::quantize_rows(static_cast<const float*>(values), inputs_, options, codes, stream, scratch.overlap());
    ops::prepare_product(codes, stage.activation.bits, stream);
  } else if (stage.activation.bits < 16) {
    ops::fake_quantize_rows(values, rows, inputs_, stage.activation, input.bad, stream);
  }
  if (bf16) ops::copy_rows(values, rows, inputs_, inputs_, scratch.halves(), stream);
}

void CudaLinear::run(LinearInput input, int64_t rows, float* y, int64_t y_stride,
                     CudaScratch& scratch) const {
  size_t prepared = stages_.size();
  bool prepared_bf16 = false;
  if (input.kind == LinearInput::Kind::Codes) {
    prepared = 0;
    const ActivationPolicy& activation = stages_.front().activation;
    ops::prepare_product(scratch.codes(inputs_, activation.group), activation.bits, scratch.stream());
  }
  for (const Part& part : parts_) {
    const Stage& stage = stages_[part.stage];
    if (const std::optional<ops::NormedRows> normed = normed_rows(part, input, rows, scratch)) {
      const ops::ZipperPlan plan = ops::plan_decode(rows, part.zipper->rows, scratch.workspace().processors);
      ops::zipper_decode(*part.zipper, {nullptr, &*normed}, plan, y + part.offset, y_stride,
                         {scratch.stream(), scratch.overlap()});
      add_done(input, inputs_);
      continue;
    }
    const bool bf16 = part.dense && part.dense->bf16();
    if (prepared != part.stage || prepared_bf16 != bf16) prepare(stage, input, rows, bf16, scratch);
    prepared = part.stage;
    prepared_bf16 = bf16;
    if (part.zipper)
      ops::zipper_product(*part.zipper, scratch.codes(inputs_, stage.activation.group), scratch.workspace(),
                          {scratch.invariant()}, y + part.offset, y_stride, scratch.stream(),
                          scratch.overlap());
    else
      part.dense->multiply(scratch.cublas(),
                           bf16 ? static_cast<const void*>(scratch.halves()) : scratch.values(), rows,
                           y + part.offset, y_stride, scratch.stream(), scratch.invariant());
  }
}

}  // namespace quatrain
