#include "checkpoint/tensor_source.h"

namespace quatrain {

int64_t TensorInfo::elements() const {
  return rows() * columns();
}

int64_t TensorInfo::rows() const {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t TensorInfo::columns() const {
  return shape.empty() ? 1 : shape.back();
}

}  // namespace quatrain
