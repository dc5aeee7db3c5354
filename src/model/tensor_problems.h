// What is wrong with a model's tensors, gathered so that one error tells all.
#pragma once

#include <string>
#include <vector>

namespace quatrain {

struct TensorProblems {
  std::vector<std::string> missing, unexpected, misshapen, mistyped;

  /// Throws where there are any; `where` begins the text.
  void raise(const std::string& where) const;
};

/// "[576, 1536]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace quatrain
