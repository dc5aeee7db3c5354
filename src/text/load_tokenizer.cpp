#include "text/pipeline_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace quatrain {
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  return std::make_unique<PipelineTokenizer>(parse_tokenizer_json(read_file(path), path.string()));
}
}  // namespace quatrain
