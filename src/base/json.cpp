#include "base/json.h"

namespace quatrain {
namespace {

constexpr int kMaxDepth = 256;                     // nlohmann's DOM destructor and our readers recurse
constexpr size_t kMaxJsonBytes = size_t{1} << 28;  // the largest tokenizers and shard indices have 40 MB

// Nesting outside strings; cheap enough to run before every parse.
void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      require(++depth <= kMaxDepth, "{}: JSON is nested deeper than {} levels", where, kMaxDepth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

template <typename Document>
Document parse(std::string_view text, std::string_view where) {
  check_depth(text, where);
  try {
    return Document::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: not valid JSON: {}", where, json_reason(error));
  }
}

}  // namespace

std::string json_reason(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t label = text.find("] ");
  return text.starts_with('[') && label != std::string::npos ? text.substr(label + 2) : text;
}

Json parse_json(std::string_view text, std::string_view where) {
  return parse<Json>(text, where);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view where) {
  return parse<OrderedJson>(text, where);
}

Json read_json(const fs::path& path) {
  return parse_json(read_file(path, kMaxJsonBytes), path.string());
}

}  // namespace quatrain
