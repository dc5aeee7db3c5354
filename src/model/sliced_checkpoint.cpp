#include "model/sliced_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/packed/packed_source.h"

namespace quatrain {
namespace {

int64_t row_width(const WeightSlice& slice) {
  return slice.shape.size() < 2 ? 1 : slice.shape.back();
}

// Rows [begin, end) of the slice as they lie in the file. Vectors are read whole: they are short, and a
// format's rows are then all of them.
void read_stored(const TensorSource& source, const WeightSlice& slice, int64_t begin, int64_t end,
                 float* out) {
  const TensorInfo& tensor = *slice.tensor;
  if (slice.shape.size() >= 2) {
    source.read_rows(tensor, slice.first_row + begin,
                     {out, static_cast<size_t>((end - begin) * row_width(slice))});
    return;
  }
  std::vector<float> whole(static_cast<size_t>(tensor.elements()));
  source.read_rows(tensor, 0, whole);
  std::copy_n(whole.begin() + slice.first_row + begin, end - begin, out);
}

// Rows [begin, end) in the model's order: RoPE's two rows of a pair lie half a head apart there, side by side
// here.
void read_paired(const TensorSource& source, const WeightSlice& slice, int64_t begin, int64_t end,
                 float* out) {
  const int64_t head = slice.paired_head_dim, width = row_width(slice);
  std::vector<float> stored(static_cast<size_t>(head * width));
  for (int64_t first = begin / head * head; first < end; first += head) {
    read_stored(source, slice, first, first + head, stored.data());
    for (int64_t row = std::max(begin, first); row < std::min(end, first + head); ++row) {
      const int64_t within = row - first, half = head / 2;
      const int64_t from = 2 * (within % half) + within / half;
      std::copy_n(stored.data() + from * width, width, out + (row - begin) * width);
    }
  }
}

// The same for codes.
std::optional<StoredCodes> read_paired_codes(const TensorSource& source, const WeightSlice& slice,
                                             int64_t begin, int64_t end) {
  const int64_t head = slice.paired_head_dim, half = head / 2;
  const int64_t first = begin / head * head, last = (end + head - 1) / head * head;
  auto stored = read_stored_codes(source, *slice.tensor, slice.first_row + first, last - first);
  if (!stored) return std::nullopt;
  StoredCodes out = *stored;
  out.rows = end - begin;
  out.codes.resize(static_cast<size_t>(out.rows * out.columns));
  out.scale.resize(static_cast<size_t>(out.rows * out.groups()));
  for (int64_t row = begin; row < end; ++row) {
    const int64_t within = row % head;
    const int64_t from = row - within - first + 2 * (within % half) + within / half;
    std::copy_n(stored->codes.begin() + from * out.columns, out.columns,
                out.codes.begin() + (row - begin) * out.columns);
    std::copy_n(stored->scale.begin() + from * out.groups(), out.groups(),
                out.scale.begin() + (row - begin) * out.groups());
  }
  return out;
}

}  // namespace

SlicedCheckpoint::SlicedCheckpoint(fs::path path, ModelConfig config, std::unique_ptr<TensorSource> source,
                                   const WeightNamer& namer, bool paired)
    : source_(std::move(source)) {
  path_ = std::move(path);
  config_ = std::move(config);
  weights_ = map_weights(*source_, namer, paired, config_);
}

const WeightSlice& SlicedCheckpoint::slice(const std::string& name) const {
  const auto found = weights_.find(name);
  require(found != weights_.end(), "{}: the model has no tensor {}", path_.string(), name);
  return found->second;
}

bool SlicedCheckpoint::has(const std::string& name) const {
  return weights_.contains(name);
}

std::vector<int64_t> SlicedCheckpoint::shape(const std::string& name) const {
  return slice(name).shape;
}

std::vector<float> SlicedCheckpoint::read(const std::string& name) const {
  return read_rows(name, 0, slice(name).shape.front());
}

std::vector<float> SlicedCheckpoint::read_rows(const std::string& name, int64_t begin, int64_t end) const {
  const WeightSlice& weights = slice(name);
  require(0 <= begin && begin <= end && end <= weights.shape.front(),
          "{}: tensor {} has {} rows; [{}, {}) was asked for", path_.string(), name, weights.shape.front(),
          begin, end);
  const int64_t width = row_width(weights);
  std::vector<float> values(static_cast<size_t>((end - begin) * width));
  if (weights.paired_head_dim > 0) {
    read_paired(*source_, weights, begin, end, values.data());
  } else {
    read_stored(*source_, weights, begin, end, values.data());
  }
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    const int64_t at = bad - values.begin();
    fail("{}: tensor {} holds {} at row {}, column {}", path_.string(), name, *bad, begin + at / width,
         at % width);
  }
  return values;
}

std::optional<StoredCodes> SlicedCheckpoint::read_codes(const std::string& name, int64_t begin,
                                                        int64_t end) const {
  const WeightSlice& weights = slice(name);
  require(0 <= begin && begin <= end && end <= weights.shape.front(),
          "{}: tensor {} has {} rows; [{}, {}) was asked for", path_.string(), name, weights.shape.front(),
          begin, end);
  if (weights.shape.size() != 2) return std::nullopt;
  auto codes = weights.paired_head_dim > 0
                   ? read_paired_codes(*source_, weights, begin, end)
                   : read_stored_codes(*source_, *weights.tensor, weights.first_row + begin, end - begin);
  if (!codes) return std::nullopt;
  for (const float scale : codes->scale)
    require(std::isfinite(scale), "{}: tensor {} has the scale {}", path_.string(), name, scale);
  return codes;
}

ActivationPolicy SlicedCheckpoint::activation(const std::string& linear) const {
  return stored_activation(*source_, *slice(linear + ".weight").tensor);
}

std::string SlicedCheckpoint::stored_type(const std::string& name) const {
  return slice(name).tensor->type;
}

uint64_t SlicedCheckpoint::stored_bytes(const std::string& name) const {
  const WeightSlice& weights = slice(name);
  // A slice is whole rows, and rows are of equal size; so are their shares of scales and zeros.
  const auto rows =
      static_cast<uint64_t>(weights.shape.size() < 2 ? weights.tensor->elements() : weights.tensor->rows());
  const auto* packed = dynamic_cast<const PackedSource*>(source_.get());
  const uint64_t bytes =
      packed != nullptr ? packed->bytes(*weights.tensor) : source_->raw(*weights.tensor).size();
  return bytes * static_cast<uint64_t>(weights.shape.front()) / rows;
}

// Of every byte of the file: once.
std::string SlicedCheckpoint::fingerprint() const {
  std::call_once(hashed_, [this] { fingerprint_ = hash_all(); });
  return fingerprint_;
}

std::string SlicedCheckpoint::hash_all() const {
  Sha256 hash;
  const auto update = [&](std::string_view text) {
    hash.update(text.data(), text.size());
    hash.update("\0", 1);
  };
  update(config_.to_json().dump());
  for (const TensorInfo& tensor : source_->tensors()) {
    update(tensor.name);
    update(tensor.type);
    update(fmt::format("{}", fmt::join(tensor.shape, ",")));
    const auto bytes = source_->raw(tensor);
    hash.update(bytes.data(), bytes.size());
  }
  return hash.hex();
}

}  // namespace quatrain
