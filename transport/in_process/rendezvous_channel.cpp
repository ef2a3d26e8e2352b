// The rendezvous channel between threads of one process.
#include <utility>

#include "transport/in_process/backend.hpp"

namespace millrace::in_process {

namespace {

class InProcessChannel final : public RendezvousChannel {
 public:
  InProcessChannel(std::shared_ptr<Hub> hub, Rank rank, std::string url)
      : hub_(std::move(hub)), rank_(rank), url_(std::move(url)) {}

  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    {
      const std::lock_guard lock(hub_->notes_mutex);
      hub_->notes[{url_, to}].push_back({rank_, {header.begin(), header.end()}, std::string(text)});
    }
    hub_->noted.notify_all();
  }

  std::optional<RendezvousMessage> receive(std::chrono::milliseconds longest) override {
    std::unique_lock lock(hub_->notes_mutex);
    auto& waiting = hub_->notes[{url_, rank_}];
    if (!hub_->noted.wait_for(lock, longest, [&] { return !waiting.empty(); })) return std::nullopt;
    RendezvousMessage note = std::move(waiting.front());
    waiting.pop_front();
    return note;
  }

 private:
  std::shared_ptr<Hub> hub_;
  Rank rank_;
  std::string url_;
};

}  // namespace

std::unique_ptr<RendezvousChannel> make_rendezvous_channel(std::shared_ptr<Hub> hub,
                                                           Rank rank,
                                                           const std::string& url) {
  return std::make_unique<InProcessChannel>(std::move(hub), rank, url);
}

}  // namespace millrace::in_process
