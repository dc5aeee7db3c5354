#include "model/tensor_problems.h"

#include <algorithm>

#include "base/error.h"

namespace quatrain {
namespace {

constexpr size_t kMaxListed = 40;  // names of one kind in an error; the rest are counted

void append(std::string& text, std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += fmt::format("\n  {} ({}):", title, names.size());
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) text += "\n    " + names[i];
  if (names.size() > kMaxListed) text += fmt::format("\n    and {} more", names.size() - kMaxListed);
}

}  // namespace

void TensorProblems::raise(const std::string& where) const {
  if (missing.empty() && unexpected.empty() && misshapen.empty() && mistyped.empty()) return;
  std::string text = fmt::format("{}: the tensors do not fit the model's config", where);
  append(text, "missing", missing);
  append(text, "unexpected", unexpected);
  append(text, "misshapen", misshapen);
  append(text, "mistyped", mistyped);
  throw Error(text);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace quatrain
