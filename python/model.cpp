#include "model.h"

#include "base/error.h"
#include "model/checkpoint.h"

namespace quatrain {
namespace {

constexpr int64_t kChunk = 64;  // tokens between two looks at whether the caller still wants them

class Sequence {
 public:
  explicit Sequence(Engine& engine) : engine_(engine), id_(engine.new_sequence()) {}
  ~Sequence() { engine_.free_sequence(id_); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  int64_t id() const { return id_; }

 private:
  Engine& engine_;
  int64_t id_;
};

// Logits of positions [first, ids.size()), in pieces.
void run(Engine& engine, std::span<const int32_t> ids, int64_t first, const std::function<void()>& pause,
         const PositionSink& sink) {
  require(!ids.empty(), "there are no ids");
  require(std::ssize(ids) <= engine.context(), "{} ids, but the context holds {}", ids.size(),
          engine.context());
  for (const int32_t id : ids)
    require(id >= 0 && id < engine.config().vocabulary, "token {} is not in the vocabulary of {}", id,
            engine.config().vocabulary);
  const Sequence sequence(engine);
  for (int64_t begin = 0; begin < std::ssize(ids);) {
    pause();
    const int64_t end = std::min({begin + kChunk, std::ssize(ids), begin < first ? first : std::ssize(ids)});
    const BatchItem item{sequence.id(),
                         ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                         begin < first ? BatchItem::Logits::None : BatchItem::Logits::All};
    engine.forward({&item, 1}, [&](int64_t, int64_t token, std::span<const float> logits) {
      sink(begin + token, logits);
    });
    begin = end;
  }
}

class EngineScorer : public Scorer {
 public:
  EngineScorer(Engine& engine, const std::function<void()>& pause) : engine_(engine), pause_(pause) {}
  std::string_view engine() const override { return "native"; }
  const ModelConfig& config() const override { return engine_.config(); }
  void score(std::span<const int32_t> ids, int64_t first, const PositionSink& sink) override {
    run(engine_, ids, first, pause_, sink);
  }

 private:
  Engine& engine_;
  const std::function<void()>& pause_;
};

}  // namespace

LoadedModel::LoadedModel(const fs::path& path, int threads, int64_t context) : path_(path) {
  EngineOptions options;
  options.threads = threads;
  options.context = context;
  engine_ = std::make_unique<LockedEngine>(Engine::load(path, options));
  try {
    tokenizer_ = load_model_tokenizer(path);
  } catch (const Error& error) {
    no_tokenizer_ = error.what();
  }
}

const Tokenizer& LoadedModel::tokenizer() const {
  return *shared_tokenizer();
}

std::shared_ptr<const Tokenizer> LoadedModel::shared_tokenizer() const {
  require(tokenizer_ != nullptr, "{}; give token ids instead of text", no_tokenizer_);
  return tokenizer_;
}

void LoadedModel::logits(std::span<const int32_t> ids, float* out, const std::function<void()>& pause) {
  run(*engine_, ids, 0, pause, [&](int64_t position, std::span<const float> row) {
    std::copy(row.begin(), row.end(), out + position * std::ssize(row));
  });
}

PerplexityResult LoadedModel::perplexity(const std::string& text, const std::string& protocol,
                                         int64_t windows, const std::function<void()>& pause) {
  EngineScorer scorer(*engine_, pause);
  PerplexityResult result =
      quatrain::perplexity(scorer, tokenizer(), load_corpus(text), Protocol::parse(protocol), windows);
  result.model = path_.string();
  return result;
}

TextStream::TextStream(std::shared_ptr<LoadedModel> model, std::vector<int32_t> prompt,
                       GenerateOptions options)
    : model_(std::move(model)), prompt_(std::move(prompt)), options_(std::move(options)) {
  options_.sampling.validate();
  model_->tokenizer();
  const int64_t context = model_->engine().context();
  require(!prompt_.empty(), "the prompt has no tokens");
  require(std::ssize(prompt_) <= context, "the prompt has {} tokens, the context holds {}", prompt_.size(),
          context);
  for (const int32_t id : prompt_)
    require(id >= 0 && id < model_->engine().config().vocabulary, "token {} is not in the vocabulary of {}",
            id, model_->engine().config().vocabulary);
  thread_ = std::thread([this] { run(); });
}

TextStream::~TextStream() {
  cancel();
  thread_.join();
}

void TextStream::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

std::optional<std::string> TextStream::next(int milliseconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return ended_ || !text_.empty(); });
  if (!text_.empty()) return std::exchange(text_, {});
  if (!ended_) return std::nullopt;
  if (error_) std::rethrow_exception(error_);
  return std::string();
}

void TextStream::run() {
  try {
    Engine& engine = model_->engine();
    const Sequence sequence(engine);
    Generation result =
        generate(engine, model_->tokenizer(), sequence.id(), prompt_, options_, [&](std::string_view text) {
          const std::lock_guard lock(mutex_);
          text_ += text;
          changed_.notify_all();
          return !cancelled_;
        });
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace quatrain
