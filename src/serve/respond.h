// From a Reply to an HTTP response: one JSON document, or a stream of server-sent events.
#pragma once

#include <httplib.h>

#include <memory>
#include <vector>

#include "base/json.h"
#include "serve/reply.h"

namespace quatrain {

/// How an endpoint writes its replies. Used by the thread of one request.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  /// A stream: what stands before the first event, what an event becomes, what stands after the last.
  virtual std::vector<Json> first_chunks() { return {}; }
  virtual std::vector<Json> chunks(const ReplyEvent& event, const Reply& reply) = 0;
  virtual std::vector<Json> last_chunks(const Reply& /*reply*/) { return {}; }
  /// One document: takes in an event; the whole.
  virtual void collect(const ReplyEvent& event) = 0;
  virtual Json document(const Reply& reply) = 0;
};

/// Waits for the whole reply, unless it streams. A client that leaves ends the generation either way.
void respond(std::unique_ptr<Reply> reply, std::unique_ptr<ReplyFormat> format, bool stream,
             httplib::Response& response);

/// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
Json usage(int64_t prompt_tokens, int64_t cached_tokens, const Reply& reply);

/// "cmpl-" and 24 random characters.
std::string new_id(const std::string& prefix);

/// The token's text in logprobs: as it is where it is whole UTF-8, else "bytes:\xe2\x80".
std::string token_label(const Tokenizer& tokenizer, int32_t token);

}  // namespace quatrain
