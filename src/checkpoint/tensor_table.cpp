#include "checkpoint/tensor_table.h"

#include "base/error.h"
#include "checkpoint/element_type.h"

namespace quatrain {

const TensorInfo* TensorTable::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void TensorTable::add(TensorInfo tensor, std::span<const std::byte> bytes, std::string_view file) {
  const bool fresh = index_.emplace(tensor.name, tensors_.size()).second;
  require(fresh, "{}: tensor {} occurs twice; the file is damaged or shards of two models are mixed", file,
          tensor.name);
  tensors_.push_back(std::move(tensor));
  bytes_.push_back(bytes);
}

std::span<const std::byte> TensorTable::raw(const TensorInfo& tensor) const {
  const auto found = index_.find(tensor.name);
  require(found != index_.end(), "{}: there is no tensor {}", path_.string(), tensor.name);
  return bytes_[found->second];
}

void TensorTable::read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const {
  const std::span<const std::byte> bytes = raw(tensor);
  const ElementType* type = find_element_type(tensor.type);
  require(type != nullptr && type->decode != nullptr,
          "{}: tensor {} has the type {}, which cannot be read as numbers; convert the model to BF16 or F16",
          path_.string(), tensor.name, tensor.type);
  const int64_t columns = tensor.columns();
  if (out.empty()) return;
  const auto count = static_cast<int64_t>(out.size());
  require(columns > 0 && count % columns == 0 && begin >= 0 && count / columns <= tensor.rows() &&
              begin <= tensor.rows() - count / columns,
          "{}: tensor {}: rows from {} ({} values) asked of {} rows of {}", path_.string(), tensor.name,
          begin, count, tensor.rows(), columns);
  const int64_t row_blocks = columns / type->block;
  type->decode(bytes.data() + static_cast<size_t>(begin * row_blocks) * type->bytes, count / type->block,
               out.data());
}

}  // namespace quatrain
