#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "fake_engine.h"

namespace quatrain {
namespace {

using Clock = GenerationRequest::Clock;
using std::chrono::milliseconds;

class Recorder : public GenerationListener {
 public:
  void on_start(int64_t tokens) override { reused = tokens; }
  void on_prompt(std::vector<TokenLogprob> logprobs) override { prompt = std::move(logprobs); }
  bool on_token(int32_t token, bool stop, const TokenLogprob* logprob) override {
    if (!stop) tokens.push_back(token);
    if (logprob != nullptr) logprobs.push_back(*logprob);
    if (tokens.size() == 1 && !stop) first.set_value();
    return std::ssize(tokens) < enough;
  }
  void on_end(Finish how, const std::string& why) override {
    error = why;
    finish.set_value(how);
  }
  Finish wait() { return finish.get_future().get(); }

  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> prompt, logprobs;
  int64_t reused = -1;
  int64_t enough = 1 << 30;
  std::string error;
  std::promise<void> first;
  std::promise<Finish> finish;
};

std::vector<int32_t> random_prompt(uint64_t seed, int64_t length) {
  SplitMix64 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.below(290));
  return prompt;
}

std::pair<GenerationRequest, std::shared_ptr<Recorder>> make_request(std::vector<int32_t> prompt,
                                                                     int64_t max_tokens) {
  auto recorder = std::make_shared<Recorder>();
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.listener = recorder;
  return {std::move(request), recorder};
}

// What one sequence alone gives, without a scheduler.
std::vector<int32_t> expected(const std::vector<int32_t>& prompt, int64_t count,
                              const SamplerOptions& sampling = {}) {
  std::vector<int32_t> tokens = prompt;
  std::vector<float> logits(300);
  Sampler sampler(sampling);
  for (int64_t i = 0; i < count; ++i) {
    FakeEngine::fill(tokens, logits);
    tokens.push_back(sampler.sample(logits));
    sampler.accept(tokens.back());
  }
  return {tokens.begin() + std::ssize(prompt), tokens.end()};
}

TEST(Scheduler, TokensDoNotDependOnNeighbours) {
  FakeEngine engine;
  Scheduler scheduler(engine, {.batch = 7, .prefill_tokens = 50, .prefill_tokens_beside_decode = 9});
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::vector<int32_t>> wanted;
  for (uint64_t i = 0; i < 40; ++i) {
    auto [request, recorder] = make_request(random_prompt(i, 1 + static_cast<int64_t>(i * 37 % 200)), 30);
    if (i % 2 == 1) request.sampling = {.temperature = 0.9f, .top_k = 20, .logit_bias = {}, .seed = i};
    wanted.push_back(expected(request.prompt, 30, request.sampling));
    recorders.push_back(recorder);
    scheduler.submit({std::move(request)});
  }
  for (size_t i = 0; i < recorders.size(); ++i) {
    EXPECT_EQ(recorders[i]->wait(), Finish::Length);
    EXPECT_EQ(recorders[i]->tokens, wanted[i]) << i;
  }
  EXPECT_EQ(engine.most_together, 7);
}

TEST(Scheduler, PreemptsWhenPagesRunOutAndTokensStayTheSame) {
  FakeEngine engine({.context = 512});
  Scheduler scheduler(engine, {.batch = 8, .kv_tokens = 640, .reuse_prefixes = false});  // 10 pages
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (uint64_t i = 0; i < 8; ++i) {
    auto [request, recorder] = make_request(random_prompt(i, 20), 300);
    recorders.push_back(recorder);
    scheduler.submit({std::move(request)});
  }
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(recorders[i]->wait(), Finish::Length);
    EXPECT_EQ(recorders[i]->tokens, expected(random_prompt(i, 20), 300));
  }
  EXPECT_GT(scheduler.stats().preemptions, 0);
  EXPECT_EQ(scheduler.stats().pages_in_use, 0);
}

TEST(Scheduler, ReusesTheLongestPrefix) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  const auto prompt = random_prompt(1, 150);
  auto [first, recorder] = make_request(prompt, 10);
  scheduler.submit({std::move(first)});
  EXPECT_EQ(recorder->wait(), Finish::Length);
  EXPECT_EQ(recorder->reused, 0);

  auto longer = prompt;
  longer.insert(longer.end(), recorder->tokens.begin(), recorder->tokens.end());
  const auto question = random_prompt(2, 20);
  longer.insert(longer.end(), question.begin(), question.end());
  auto [second, follow_up] = make_request(longer, 10);
  scheduler.submit({std::move(second)});
  EXPECT_EQ(follow_up->wait(), Finish::Length);
  EXPECT_EQ(follow_up->reused, 159);  // the reply's last token was never run
  EXPECT_EQ(follow_up->tokens, expected(longer, 10));

  auto [repeat, same] = make_request(longer, 10);  // the very same prompt: all but its last token
  scheduler.submit({std::move(repeat)});
  EXPECT_EQ(same->wait(), Finish::Length);
  EXPECT_EQ(same->reused, std::ssize(longer) - 1);
  EXPECT_EQ(same->tokens, follow_up->tokens);
}

TEST(Scheduler, LosesNoLongPrefixForAShortOne) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  auto [first, recorder] = make_request(random_prompt(1, 200), 1);
  scheduler.submit({std::move(first)});
  recorder->wait();
  auto prompt = random_prompt(1, 200);
  std::fill(prompt.begin() + 50, prompt.end(), 7);
  auto [second, other] = make_request(prompt, 1);
  scheduler.submit({std::move(second)});
  other->wait();
  EXPECT_EQ(other->reused, 0);
  auto [third, again] = make_request(random_prompt(1, 200), 1);
  scheduler.submit({std::move(third)});
  again->wait();
  EXPECT_EQ(again->reused, 199);
}

TEST(Scheduler, CancellingFreesPagesAtOnce) {
  FakeEngine engine({.step_time = milliseconds(1)});
  Scheduler scheduler(engine);
  auto [request, recorder] = make_request(random_prompt(1, 100), 400);
  const auto ids = scheduler.submit({std::move(request)});
  recorder->first.get_future().wait();
  scheduler.cancel(ids[0]);
  EXPECT_EQ(recorder->wait(), Finish::Cancelled);
  EXPECT_LT(recorder->tokens.size(), 400u);
  EXPECT_EQ(scheduler.stats().pages_in_use, 0);
  EXPECT_EQ(scheduler.stats().running, 0);
  scheduler.cancel(ids[0]);  // ended already: nothing happens
  scheduler.cancel(12345);
}

TEST(Scheduler, DeadlinesEndWaitingAndRunningRequests) {
  FakeEngine engine({.step_time = milliseconds(2)});
  Scheduler scheduler(engine, {.batch = 1});
  auto [running, first] = make_request(random_prompt(1, 5), 400);
  running.deadline = Clock::now() + milliseconds(60);
  auto [waiting, second] = make_request(random_prompt(2, 5), 400);
  waiting.deadline = Clock::now() + milliseconds(20);
  scheduler.submit({std::move(running)});
  scheduler.submit({std::move(waiting)});
  EXPECT_EQ(first->wait(), Finish::Deadline);
  EXPECT_EQ(second->wait(), Finish::Deadline);
  EXPECT_EQ(second->reused, -1);  // never started
}

TEST(Scheduler, QueueIsBounded) {
  FakeEngine engine({.step_time = milliseconds(1)});
  Scheduler scheduler(engine, {.batch = 1, .queue = 3});
  std::vector<std::shared_ptr<Recorder>> recorders;
  const auto submit = [&](int count) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < count; ++i) {
      auto [request, recorder] = make_request(random_prompt(1, 5), 50);
      requests.push_back(std::move(request));
      recorders.push_back(recorder);
    }
    scheduler.submit(std::move(requests));
  };
  submit(1);
  recorders[0]->first.get_future().wait();
  submit(2);
  EXPECT_THROW(submit(2), QueueFull);  // all or none
  recorders.resize(3);
  submit(1);
  EXPECT_THROW(submit(1), QueueFull);
  recorders.resize(4);
  for (const auto& recorder : recorders) EXPECT_EQ(recorder->wait(), Finish::Length);
}

TEST(Scheduler, DrainFinishesWhatIsThere) {
  FakeEngine engine({.step_time = milliseconds(1)});
  Scheduler scheduler(engine, {.batch = 1});
  auto [a, first] = make_request(random_prompt(1, 5), 20);
  auto [b, second] = make_request(random_prompt(2, 5), 20);
  scheduler.submit({std::move(a)});
  scheduler.submit({std::move(b)});
  EXPECT_TRUE(scheduler.drain(Clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(first->wait(), Finish::Length);
  EXPECT_EQ(second->wait(), Finish::Length);
  auto [late, none] = make_request(random_prompt(3, 5), 20);
  EXPECT_THROW(scheduler.submit({std::move(late)}), Draining);
}

TEST(Scheduler, DrainCancelsAtItsDeadline) {
  FakeEngine engine({.step_time = milliseconds(2)});
  Scheduler scheduler(engine);
  auto [request, recorder] = make_request(random_prompt(1, 5), 500);
  scheduler.submit({std::move(request)});
  EXPECT_FALSE(scheduler.drain(Clock::now() + milliseconds(10)));
  EXPECT_EQ(recorder->wait(), Finish::Cancelled);
}

TEST(Scheduler, DestructionCancels) {
  FakeEngine engine({.step_time = milliseconds(2)});
  auto [request, recorder] = make_request(random_prompt(1, 5), 500);
  {
    Scheduler scheduler(engine);
    scheduler.submit({std::move(request)});
  }
  EXPECT_EQ(recorder->wait(), Finish::Cancelled);
  EXPECT_EQ(engine.pages_in_use(), 0);
}

TEST(Scheduler, OneFailureHarmsNoNeighbour) {
  FakeEngine engine({.poison = 299});
  SamplerOptions bias;
  bias.logit_bias[299] = -100;
  Scheduler scheduler(engine);
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    auto prompt = random_prompt(i, 40);
    if (i == 3) prompt[35] = 299;
    auto [request, recorder] = make_request(prompt, 20);
    request.sampling = bias;
    requests.push_back(std::move(request));
    recorders.push_back(recorder);
  }
  scheduler.submit(std::move(requests));
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(recorders[i]->wait(), i == 3 ? Finish::Failed : Finish::Length);
    if (i == 3) continue;
    EXPECT_EQ(recorders[i]->tokens, expected(random_prompt(i, 40), 20, bias));
  }
  EXPECT_EQ(recorders[3]->error, "token 299 is poison");
}

TEST(Scheduler, StopsAtStopTokensAndWhenTheListenerHasEnough) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  const auto prompt = random_prompt(4, 10);
  const auto tokens = expected(prompt, 20);
  auto [a, stopped] = make_request(prompt, 20);
  a.stop_ids = {tokens[7]};
  auto [b, enough] = make_request(prompt, 20);
  enough->enough = 5;
  scheduler.submit({std::move(a)});
  scheduler.submit({std::move(b)});
  EXPECT_EQ(stopped->wait(), Finish::Stop);
  const auto end = std::find(tokens.begin(), tokens.end(), tokens[7]);
  EXPECT_EQ(stopped->tokens, std::vector<int32_t>(tokens.begin(), end));
  EXPECT_EQ(enough->wait(), Finish::Stop);
  EXPECT_EQ(enough->tokens.size(), 5u);
}

TEST(Scheduler, FillsTheContextToItsLastToken) {
  FakeEngine engine({.context = 64});
  Scheduler scheduler(engine);
  auto [a, most] = make_request(random_prompt(1, 60), 1000);
  auto [b, full] = make_request(random_prompt(2, 64), 1000);
  scheduler.submit({std::move(a)});
  scheduler.submit({std::move(b)});
  EXPECT_EQ(most->wait(), Finish::Length);
  EXPECT_EQ(most->tokens.size(), 5u);  // four in the cache, and one that follows them
  EXPECT_EQ(full->wait(), Finish::Length);
  EXPECT_EQ(full->tokens.size(), 1u);
  auto [c, none] = make_request(random_prompt(3, 65), 1);
  EXPECT_THROW(scheduler.submit({std::move(c)}), Error);
}

TEST(Scheduler, LogprobsOfPromptAndReply) {
  FakeEngine engine;
  Scheduler scheduler(engine, {.prefill_tokens = 16});
  const auto prompt = random_prompt(5, 100);
  auto [warm, before] = make_request(prompt, 1);  // a cached prefix must not cut the prompt's logprobs
  scheduler.submit({std::move(warm)});
  before->wait();
  auto [request, recorder] = make_request(prompt, 3);
  request.prompt_logprobs = true;
  request.top_logprobs = 2;
  request.sampling.logit_bias[42] = 100;  // the logprobs are the model's own
  scheduler.submit({std::move(request)});
  EXPECT_EQ(recorder->wait(), Finish::Length);
  EXPECT_EQ(recorder->tokens, (std::vector<int32_t>{42, 42, 42}));

  auto tokens = prompt;
  tokens.insert(tokens.end(), {42, 42, 42});
  ASSERT_EQ(recorder->prompt.size(), 99u);
  ASSERT_EQ(recorder->logprobs.size(), 3u);
  std::vector<float> logits(300);
  for (size_t i = 1; i < tokens.size(); ++i) {
    FakeEngine::fill({tokens.begin(), tokens.begin() + static_cast<int64_t>(i)}, logits);
    const TokenLogprob& got = i < 100 ? recorder->prompt[i - 1] : recorder->logprobs[i - 100];
    EXPECT_EQ(got.token, tokens[i]);
    // exp in FP32, its sum in FP64: a relative error of 2^-23 in the sum at most.
    EXPECT_NEAR(got.logprob, log_probability(logits, tokens[i]), 1e-6);
    ASSERT_EQ(got.top.size(), 2u);
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(got.top[0].first, best);
    EXPECT_GE(got.top[0].second, got.top[1].second);
  }
}

TEST(Scheduler, ScoresAPromptWithoutGenerating) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  auto [request, recorder] = make_request(random_prompt(5, 10), 0);
  request.prompt_logprobs = true;
  scheduler.submit({std::move(request)});
  EXPECT_EQ(recorder->wait(), Finish::Length);
  EXPECT_EQ(recorder->prompt.size(), 9u);
  EXPECT_TRUE(recorder->tokens.empty());
}

TEST(Scheduler, RefusesWhatNoEngineCouldServe) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  const auto refused = [&](auto change) {
    auto [request, recorder] = make_request({1, 2}, 5);
    change(request);
    EXPECT_THROW(scheduler.submit({std::move(request)}), Error);
  };
  refused([](GenerationRequest& r) { r.prompt = {}; });
  refused([](GenerationRequest& r) { r.prompt = {300}; });
  refused([](GenerationRequest& r) { r.prompt = {-1}; });
  refused([](GenerationRequest& r) { r.max_tokens = -1; });
  refused([](GenerationRequest& r) { r.sampling.top_p = 0; });
  refused([](GenerationRequest& r) { r.sampling.logit_bias[300] = 1; });
  EXPECT_EQ(scheduler.stats().waiting, 0);
}

class OnlyEven : public TokenConstraint {
 public:
  void mask(std::span<float> logits, int64_t) override {
    for (size_t i = 1; i < logits.size(); i += 2) logits[i] = -INFINITY;
  }
  bool accept(int32_t) override { return ++count_ == 5; }

 private:
  int count_ = 0;
};

TEST(Scheduler, ConstraintsMaskAndEnd) {
  FakeEngine engine;
  Scheduler scheduler(engine);
  auto [request, recorder] = make_request(random_prompt(1, 5), 50);
  request.constraint = std::make_shared<OnlyEven>();
  scheduler.submit({std::move(request)});
  EXPECT_EQ(recorder->wait(), Finish::Stop);
  EXPECT_EQ(recorder->tokens.size(), 5u);
  for (const int32_t token : recorder->tokens) EXPECT_EQ(token % 2, 0);
}

TEST(Scheduler, ManyClientsThatComeAndGo) {
  FakeEngine engine({.step_time = std::chrono::microseconds(200)});
  Scheduler scheduler(engine, {.batch = 16, .queue = 1000, .kv_tokens = 3000});
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0}, whole{0};
  for (uint64_t c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      SplitMix64 random(c);
      for (int i = 0; i < 12; ++i) {
        const uint64_t seed = random.below(10);
        const auto prompt = random_prompt(seed, 10 + static_cast<int64_t>(seed) * 25);
        auto [request, recorder] = make_request(prompt, 40);
        const auto ids = scheduler.submit({std::move(request)});
        if (random.below(3) == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random.below(5000)));
          scheduler.cancel(ids[0]);
        }
        if (recorder->wait() != Finish::Length) continue;
        ++whole;
        if (recorder->tokens != expected(prompt, 40)) ++wrong;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(whole, 0);
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.pages_in_use, stats.pages_cached);
}

}  // namespace
}  // namespace quatrain
