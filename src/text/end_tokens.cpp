#include "text/end_tokens.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace quatrain {

void add_end_tokens(TokenizerDefinition& definition) {
  static constexpr std::array<std::string_view, 13> kNames = {"<|eot_id|>",
                                                              "<|eom_id|>",
                                                              "<|im_end|>",
                                                              "<|end|>",
                                                              "<|eot|>",
                                                              "<EOT>",
                                                              "<|EOT|>",
                                                              "<turn|>",
                                                              "<|endoftext|>",
                                                              "<end_of_turn>",
                                                              "<|end_of_text|>",
                                                              "<|end_of_turn|>",
                                                              "<｜end▁of▁sentence｜>"};
  for (const AddedToken& token : definition.added)
    if (std::find(kNames.begin(), kNames.end(), token.content) != kNames.end() &&
        std::find(definition.eos.begin(), definition.eos.end(), token.id) == definition.eos.end())
      definition.eos.push_back(token.id);
}

}  // namespace quatrain
