#include "serve/respond.h"

#include <numeric>
#include <random>
#include <utility>

#include "serve/api_error.h"
#include "serve/connection.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{200};          // between two looks whether the client is still there
constexpr milliseconds kKeepAlive{15'000};  // of silence, before a comment shows proxies that we live

struct Stream {
  std::unique_ptr<Reply> reply;
  std::unique_ptr<ReplyFormat> format;
  bool begun = false, ended = false;
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
};

void append(std::string& out, const std::vector<Json>& chunks) {
  for (const Json& chunk : chunks) out += "data: " + dump_json(chunk) + "\n\n";
}

// What is to be sent now; waits for a while when there is nothing.
std::string take_events(Stream& stream) {
  std::string out;
  if (!std::exchange(stream.begun, true)) {
    append(out, stream.format->first_chunks());
    return out;
  }
  try {
    for (auto event = stream.reply->next(kLook); event; event = stream.reply->next(milliseconds(0)))
      append(out, stream.format->chunks(*event, *stream.reply));
    if (stream.reply->open() > 0) return out;
    append(out, stream.format->last_chunks(*stream.reply));
  } catch (...) {
    append(out, {describe_current_exception().to_json()});
  }
  stream.ended = true;
  return out + "data: [DONE]\n\n";
}

// One turn of a stream. False ends it: the client has left.
bool send_events(Stream& stream, httplib::DataSink& sink) {
  std::string out = take_events(stream);
  const auto now = std::chrono::steady_clock::now();
  if (out.empty()) {
    if (!sink.is_writable()) return false;
    if (now - stream.last < kKeepAlive) return true;
    out = ": still here\n\n";
  }
  stream.last = now;
  if (!sink.write(out.data(), out.size())) return false;
  if (stream.ended) {
    stream.reply.reset();
    sink.done();
  }
  return true;
}

}  // namespace

void respond(std::unique_ptr<Reply> reply, std::unique_ptr<ReplyFormat> format, bool stream,
             httplib::Response& response) {
  if (stream) {
    auto state = std::make_shared<Stream>(Stream{std::move(reply), std::move(format)});
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream", [state](size_t, httplib::DataSink& sink) { return send_events(*state, sink); });
    return;
  }
  Connection& connection = *Connection::current();
  auto looked = std::chrono::steady_clock::now();
  while (reply->open() > 0) {
    if (const auto event = reply->next(kLook)) format->collect(*event);
    const auto now = std::chrono::steady_clock::now();
    if (now - looked < kLook) continue;
    looked = now;
    if (connection.alive()) continue;
    connection.close_after_response();
    throw ApiError(499, "invalid_request_error", "client_left", "the client closed the connection");
  }
  response.set_content(dump_json(format->document(*reply)), "application/json");
}

Json usage(int64_t prompt_tokens, int64_t cached_tokens, const Reply& reply) {
  int64_t generated = 0;
  for (size_t i = 0; i < reply.choices(); ++i) generated += reply.generated(i);
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", generated},
          {"total_tokens", prompt_tokens + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::string new_id(const std::string& prefix) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

std::string token_label(const Tokenizer& tokenizer, int32_t token) {
  if (token >= tokenizer.size()) return {};  // rows that pad the model's vocabulary
  std::string bytes = tokenizer.token_bytes(token);
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string label = "bytes:";
  for (const char byte : bytes) label += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return label;
}

}  // namespace quatrain
