// What Python's Model and Stream hold. Nothing here touches Python: callers have released the GIL.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/generate.h"
#include "eval/perplexity.h"
#include "locked_engine.h"

namespace quatrain {

class LoadedModel {
 public:
  LoadedModel(const fs::path& path, int threads, int64_t context);

  const fs::path& path() const { return path_; }
  Engine& engine() { return *engine_; }
  /// Throws where the model brings none.
  const Tokenizer& tokenizer() const;
  std::shared_ptr<const Tokenizer> shared_tokenizer() const;
  /// Of a text as the model expects it, BOS included where its tokenizer adds one.
  std::vector<int32_t> encode(const std::string& text) const { return tokenizer().encode_sequence(text); }

  /// Writes [ids.size(), vocabulary] logits. `pause` is called now and then; what it throws ends the run.
  void logits(std::span<const int32_t> ids, float* out, const std::function<void()>& pause);
  PerplexityResult perplexity(const std::string& text, const std::string& protocol, int64_t windows,
                              const std::function<void()>& pause);

 private:
  fs::path path_;
  std::unique_ptr<LockedEngine> engine_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string no_tokenizer_;  // why
};

/// A generation that runs on a thread of its own, so that whoever waits for its text can be interrupted.
class TextStream {
 public:
  TextStream(std::shared_ptr<LoadedModel> model, std::vector<int32_t> prompt, GenerateOptions options);
  /// Cancels what still runs.
  ~TextStream();

  /// Waits up to `milliseconds` for text. nullopt when none came in that time; an empty text at the end.
  /// Throws what the generation threw.
  std::optional<std::string> next(int milliseconds);
  void cancel();
  /// Valid after the end.
  const Generation& result() const { return result_; }

 private:
  void run();

  std::shared_ptr<LoadedModel> model_;
  std::vector<int32_t> prompt_;
  GenerateOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  bool ended_ = false, cancelled_ = false;
  std::exception_ptr error_;
  Generation result_;
  std::thread thread_;
};

}  // namespace quatrain
