// A tokenizer of single bytes: ids 0 to 255, then special tokens, with a chat template that has tools.
#pragma once

#include <fmt/format.h>

#include <memory>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace quatrain {

inline constexpr int32_t kEndOfText = 256, kTurnBegin = 257, kTurnEnd = 258;

inline std::unique_ptr<Tokenizer> byte_tokenizer() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "gpt-2";
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.push_back(byte_level_char(static_cast<uint8_t>(byte)));
  vocabulary.types.assign(256, 1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.push_back(special);
    vocabulary.types.push_back(3);
  }
  // A vocabulary must have a merge: of two bytes that no text has.
  const std::string first = byte_level_char(0), second = byte_level_char(1);
  vocabulary.tokens.push_back(first + second);
  vocabulary.types.push_back(1);
  vocabulary.merges.push_back(first + " " + second);
  while (vocabulary.tokens.size() < 300) {
    vocabulary.tokens.push_back(fmt::format("<unused{}>", vocabulary.tokens.size()));
    vocabulary.types.push_back(3);
  }
  vocabulary.bos = kEndOfText;
  vocabulary.eos = kTurnEnd;
  vocabulary.add_bos = false;
  vocabulary.where = "byte tokenizer";
  vocabulary.chat_template =
      "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}. Answer with <tool_call>\n{\"name\": "
      "..., \"arguments\": ...}\n</tool_call><|im_end|>\n{% endif %}"
      "{%- for message in messages %}"
      "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
      "{{- raise_exception('unknown role ' + message.role) }}{% endif %}"
      "<|im_start|>{{ message.role }}\n{{ message.content }}"
      "{%- for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
      "{%- endfor %}<|im_end|>\n{% endfor %}"
      "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  return load_tokenizer(std::move(vocabulary));
}

}  // namespace quatrain
