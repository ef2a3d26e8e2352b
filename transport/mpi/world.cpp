#include "transport/mpi/world.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/transport/mpi.hpp"
#include "transport/mpi/pause.hpp"

namespace millrace {

namespace mpi {

namespace {

using namespace std::chrono_literals;

constexpr int kPurposes = 4;
constexpr int kMostEpochs = 1 << 12;
/// What every MPI promises.
constexpr int kFewestTags = 1 << 15;
/// So long each rank waits at its end for the others to have come as far.
constexpr auto kParting = 1s;

std::string version_text() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int size = 0;
  MPI_Get_library_version(text.data(), &size);
  return {text.data(), static_cast<std::size_t>(size)};
}

/// The first number with dots in it: "4.1.4".
std::string number_in(const std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789");
  const std::size_t end = std::min(text.find_first_not_of("0123456789.", begin), text.size());
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin);
}

}  // namespace

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(code, text.data(), &size);
  throw TransportError(std::string("MPI cannot ") + what + ": " +
                       std::string(text.data(), static_cast<std::size_t>(size)));
}

World& World::started() {
  static World world;
  return world;
}

World::World() {
  int running = 0;
  MPI_Initialized(&running);
  int level = MPI_THREAD_SINGLE;
  if (running == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "start");
    ours_ = true;
  } else {
    check(MPI_Query_thread(&level), "say what threads may do");
  }
  // A program that has started it before us calls it without our turn.
  const int needed = ours_ ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
  if (level < needed)
    throw TransportError(mpi_library() + " was started for fewer threads than ranks need" +
                         (ours_ ? "" : "; start it with MPI_THREAD_MULTIPLE"));
  start();
}

/// Communicators of our own: nothing here is taken for a message of the program's.
void World::start() {
  check(MPI_Comm_dup(MPI_COMM_WORLD, &words_), "make a communicator");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &payloads_), "make a communicator");
  for (MPI_Comm each : {words_, payloads_}) MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
  check(MPI_Comm_rank(words_, &process_), "say who this is");
  check(MPI_Comm_size(words_, &processes_), "count the processes");
  int* most = nullptr;
  int known = 0;
  MPI_Comm_get_attr(words_, MPI_TAG_UB, static_cast<void*>(&most), &known);
  tags_ = known != 0 ? *most : kFewestTags;
  epochs_ = std::min(tags_ / kPurposes, kMostEpochs);
}

World::~World() {
  if (!ours_) return;
  try {
    if (part() || !abandoned_) MPI_Finalize();
  } catch (const std::exception&) {
    return;  // mpirun ends who is left
  }
}

/// mpirun ends all others as soon as one process of a job ends without MPI_Finalize. So a process
/// that has sent all waits for the others to have done so, too, and takes what they sent last:
/// MPI complains of messages that were not received. True when all others have come as far.
bool World::part() {
  const std::lock_guard lock(turn_);
  const int tag = tag_of(0, Purpose::Farewell, 0, 0);
  for (int i = 0; i < processes_; ++i)
    if (i != process_) send(i, tag, std::vector<std::byte>(1));
  std::set<int> gone{process_};
  for (Pause pause(std::chrono::steady_clock::now() + kParting);
       static_cast<int>(gone.size()) < processes_;) {
    sweep();
    Waiting word;
    if (!waits(MPI_ANY_TAG, word)) {
      if (!pause.sleep()) return false;
      continue;
    }
    std::vector<std::byte> unread(static_cast<std::size_t>(word.bytes));
    MPI_Request request = receive(word, unread.data());
    check(MPI_Wait(&request, MPI_STATUS_IGNORE), "receive");
    if (word.tag == tag) gone.insert(word.from);
  }
  return true;
}

/// Pairs of n places are the numbers below n n, for any n.
int World::most_places() const {
  const int pairs = tags_ / (kPurposes * epochs_);
  int places = 1;
  while ((places + 1) * (places + 1) <= pairs) ++places;
  return places;
}

int World::tag_of(std::uint32_t epoch, Purpose purpose, int from_place, int to_place) const {
  const int larger = std::max(from_place, to_place);
  const int pair = larger * larger + (to_place == larger ? from_place : larger + 1 + to_place);
  const int number = static_cast<int>(epoch % static_cast<std::uint32_t>(epochs_));
  return (pair * epochs_ + number) * kPurposes + static_cast<int>(purpose);
}

void World::send(int to, int tag, std::vector<std::byte> bytes) {
  send(to, tag, std::move(bytes), 0, Tensor());
}

void World::send(int to, int tag, std::vector<std::byte> bytes, int payload_tag, Tensor payload) {
  PendingSend& pending = sends_.emplace_back();
  pending.bytes = std::move(bytes);
  pending.payload = std::move(payload);
  check(MPI_Isend(pending.bytes.data(),
                  static_cast<int>(pending.bytes.size()),
                  MPI_BYTE,
                  to,
                  tag,
                  words_,
                  pending.requests.data()),
        "send");
  if (pending.payload.bytes() == 0) return;
  check(MPI_Isend(pending.payload.data(),
                  static_cast<int>(pending.payload.bytes()),
                  MPI_BYTE,
                  to,
                  payload_tag,
                  payloads_,
                  &pending.requests[1]),
        "send");
}

bool World::sweep() {
  const std::size_t before = sends_.size();
  sends_.remove_if([](PendingSend& pending) {
    int done = 0;
    check(MPI_Testall(2, pending.requests.data(), &done, MPI_STATUSES_IGNORE), "send");
    return done != 0;
  });
  return sends_.size() != before;
}

bool World::waits(int tag, Waiting& found) {
  int came = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, words_, &came, &status), "look for messages");
  if (came == 0) return false;
  found.from = status.MPI_SOURCE;
  found.tag = status.MPI_TAG;
  check(MPI_Get_count(&status, MPI_BYTE, &found.bytes), "count bytes");
  return true;
}

MPI_Request World::receive(const Waiting& message, std::byte* into) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(into, message.bytes, MPI_BYTE, message.from, message.tag, words_, &request),
        "receive");
  return request;
}

MPI_Request World::receive_payload(int from, int tag, std::byte* into, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, from, tag, payloads_, &request),
        "receive");
  return request;
}

bool World::arrived(MPI_Request& request, std::size_t bytes) {
  if (request == MPI_REQUEST_NULL) return true;
  int done = 0;
  MPI_Status status;
  check(MPI_Test(&request, &done, &status), "receive");
  if (done == 0) return false;
  int came = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &came), "count bytes");
  if (came != static_cast<int>(bytes))
    throw TransportError("a message of " + std::to_string(came) + " bytes came, announced were " +
                         std::to_string(bytes));
  return true;
}

}  // namespace mpi

std::string mpi_library() {
  const std::string text = mpi::version_text();
  for (const char* name : {"Open MPI", "MPICH"})
    if (text.starts_with(name)) return std::string(name) + " " + mpi::number_in(text);
  return text.substr(0, text.find('\n'));
}

}  // namespace millrace
