// Endpoints between processes over ZeroMQ: ipc in a private directory on one host, tcp with CURVE
// between hosts. What they guarantee, and why they are built so, is in transport/README.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// Text that is overwritten before its memory is given back; so is what it held before.
/// Thread-safety: externally synchronised.
class SecretText {
 public:
  SecretText() = default;
  /// Copies `text`, which remains its owner's to wipe.
  explicit SecretText(std::string_view text) : text_(text) {}
  SecretText(const SecretText&) = default;
  SecretText(SecretText&& other) noexcept { text_.swap(other.text_); }
  SecretText& operator=(SecretText other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~SecretText();

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Overwrites `bytes` with zeros, which no optimization leaves out.
void wipe(std::span<char> bytes) noexcept;

/// A CURVE key pair as Z85 text of 40 characters each. The network library keeps copies of its own
/// of what its sockets are given.
struct CurveKeys {
  std::string public_key;
  SecretText secret_key;
};

/// Whether `text` is a key: 40 letters of Z85 that make 32 bytes.
[[nodiscard]] bool is_curve_key(const std::string& text);

/// New random keys from the system's source of randomness.
[[nodiscard]] CurveKeys make_curve_keys();

/// What one rank needs to prove who it is and to know the others; empty: no authentication.
struct CurveRing {
  CurveKeys own;
  std::vector<std::string> public_keys;  ///< by rank; the only ones that are let in
};

/// Makes new keys for `ranks` ranks and writes `directory`/keys-R for each: its own pair, then the
/// public keys of all, with which the ranks of one job prove to each other who they are. Readable
/// by this user alone from their first moment. Returns the paths. Throws InvalidArgument when one
/// exists already or cannot be written; then none is left.
std::vector<std::string> write_key_files(const std::string& directory, int ranks);

/// The keys of `rank` in a world of `world` ranks, out of its file or out of the folder of all.
/// Throws InvalidArgument when the file cannot be read, others may read it, or it holds the keys of
/// another rank or world; DataError when it holds no keys.
[[nodiscard]] CurveRing read_key_file(const std::string& path, Rank rank, int world);

/// The same out of a file that the launcher has opened. Closes the descriptor in
/// any case.
[[nodiscard]] CurveRing read_keys(int descriptor, Rank rank, int world);

/// The network library's context: one per process, created once, ended last. Holds the zap_handler
/// that admits known keys only.
/// Thread-safety: internally synchronised, any thread.
class ZeroMqContext {
 public:
  ZeroMqContext();
  ZeroMqContext(const ZeroMqContext&) = delete;
  ZeroMqContext& operator=(const ZeroMqContext&) = delete;
  ~ZeroMqContext();

  struct Parts;
  [[nodiscard]] Parts& parts() { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

enum class ZeroMqLink : std::uint8_t { Ipc, Tcp };

struct ZeroMqOptions : LinkOptions {
  ZeroMqLink link = ZeroMqLink::Ipc;
  /// Ipc: where the sockets lie; checked to be private. With either link ranks of one machine that
  /// name the same directory also see there what each of them does at this very moment.
  std::string directory;
  std::string interface = "127.0.0.1";  ///< Tcp: the one address to listen on
  CurveRing keys;                       ///< Tcp: required unless `insecure`
  /// Ranks that say the same word may share memory: what two of them send each other goes there as
  /// soon as a socket of one answers the other, and over tcp before that, and where none does.
  /// Empty: this one does not.
  std::string local_group = {};
  bool insecure = false;  ///< Tcp without authentication or encryption

  /// A rank whose connection ended has this long to come back, and four times the longest that a
  /// first hand-shake took where a process still listens.
  std::chrono::milliseconds reconnect_grace{300};
  /// First interval after which a sender asks whether everything arrived; doubles up to a second.
  std::chrono::milliseconds probe_after{50};
  int attempts = 8;  ///< how often the same frame may be asked for again
};

/// How many descriptors a process with one rank of `world` may have open at once for it.
[[nodiscard]] std::size_t descriptors_of_rank(int world);

/// A rank that listens at two sockets; see Listener.
/// Thread-safety: externally synchronised.
class ZeroMqListener final : public Listener {
 public:
  /// Binds. Throws InvalidArgument on options that do not fit (tcp without keys, a directory that
  /// others may enter, a path above 107 bytes or with a line break or tab in it), TransportError
  /// when binding fails, when the process may open fewer descriptors than the ranks take, or
  /// when a living process has this rank of this epoch; the files that a dead one left are taken
  /// over.
  ZeroMqListener(const ZeroMqOptions& options, std::shared_ptr<ZeroMqContext> context);
  ~ZeroMqListener() override;

  [[nodiscard]] const Membership& member() const override;
  [[nodiscard]] PeerAddress address() const override;

  /// At "ipc://path" or "tcp://host:port".
  [[nodiscard]] std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t longest_note) override;

  /// Starts the thread that serves the sockets while the rank computes. Returns at once: a peer
  /// that never answers is found by `silence`. Received tensors lie on a 64-byte boundary, large
  /// ones mostly where they arrived.
  [[nodiscard]] std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override;

  [[nodiscard]] std::string connections() const override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Connected endpoints of `world` ranks in this process, by rank; for tests and benchmarks. With
/// tcp and not insecure, keys are made here. With `neighbours`, each group of as many ranks has a
/// local_group of its own.
[[nodiscard]] std::vector<std::unique_ptr<Endpoint>> zeromq_mesh(const ZeroMqOptions& options,
                                                                 int neighbours = 0);

}  // namespace millrace
