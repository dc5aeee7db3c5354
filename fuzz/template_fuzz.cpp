// Chat templates: any bytes as a template, rendered on a fixed conversation.
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "base/json.h"
#include "text/chat_template.h"

namespace {

const quatrain::OrderedJson& conversation() {
  static const quatrain::OrderedJson context = quatrain::parse_ordered_json(R"({
    "messages": [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Grüße, 世界 🦜"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function",
                  "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, true, null, "z"]}}}]},
                 {"role": "tool", "content": "42", "tool_call_id": "a"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object",
               "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})",
                                                                            "conversation");
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    (void)quatrain::ChatTemplate(source).render(conversation(), std::tm{});
  } catch (const quatrain::Error&) {  // the only way to fail
  }
  return 0;
}
