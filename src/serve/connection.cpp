#include "serve/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace quatrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};      // between two looks at what else is going on
constexpr milliseconds kLinger{1'000};  // for a client that still sends when its answer is written
constexpr size_t kLingerBytes = 64 << 20;

thread_local Connection* current_connection = nullptr;

bool wait_for(socket_t socket, short events, milliseconds time) {
  pollfd descriptor{socket, events, 0};
  return poll(&descriptor, 1, static_cast<int>(time.count())) > 0;
}

void name_of(const sockaddr_storage& address, std::string& ip, int& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof v6);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    port = ntohs(v6.sin6_port);
  }
  ip = text.data();
}

}  // namespace

Connection::Connection(socket_t socket, const ConnectionLimits& limits, std::function<bool()> hurried,
                       std::function<bool()> stopping)
    : socket_(socket), limits_(limits), hurried_(std::move(hurried)), stopping_(std::move(stopping)) {
  const int yes = 1;  // each event of a stream is sent at once
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  current_connection = this;
}

// A close with unread bytes resets the connection, and the client may lose the answer: read a little more.
Connection::~Connection() {
  current_connection = nullptr;
  shutdown(socket_, SHUT_WR);
  const auto deadline = Clock::now() + kLinger;
  if (close_after_response_) {
    for (size_t read = 0; read < kLingerBytes && Clock::now() < deadline && !stopping_();) {
      if (!wait_for(socket_, POLLIN, kSlice)) continue;
      const ssize_t count = recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (count <= 0) break;
      read += static_cast<size_t>(count);
    }
  }
  close(socket_);
}

Connection* Connection::current() {
  return current_connection;
}

bool Connection::wait_for_request(bool first) {
  begin_ = Clock::now();
  deadline_ = begin_ + limits_.header_time;
  bytes_left_ = limits_.header_bytes;
  if (begin_of_buffer_ < end_of_buffer_) return true;
  const auto most = first ? limits_.header_time : limits_.idle_time;
  while (!wait_for(socket_, POLLIN, kSlice)) {
    const auto waited = Clock::now() - begin_;
    if (stopping_() || waited > most) return false;
    if (hurried_() && (!first || waited > limits_.hurried_time)) return false;
  }
  begin_ = Clock::now();
  deadline_ = begin_ + limits_.header_time;
  return true;
}

void Connection::begin_body() {
  deadline_ = begin_ + limits_.body_time;
  bytes_left_ = limits_.body_bytes + limits_.header_bytes;  // chunk headers and trailers come on top
}

bool Connection::alive() const {
  char byte;
  if (!wait_for(socket_, POLLIN, milliseconds(0))) return true;
  const ssize_t count = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

bool Connection::is_readable() const {
  return begin_of_buffer_ < end_of_buffer_ || wait_for(socket_, POLLIN, milliseconds(0));
}

ssize_t Connection::fill() {
  for (;;) {
    const auto now = Clock::now();
    if (now > deadline_ || stopping_() || (hurried_() && now > begin_ + limits_.hurried_time)) return -1;
    if (!wait_for(socket_, POLLIN, kSlice)) continue;
    const ssize_t count = recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    begin_of_buffer_ = 0;
    end_of_buffer_ = static_cast<size_t>(std::max<ssize_t>(count, 0));
    return count;
  }
}

ssize_t Connection::read(char* data, size_t size) {
  if (begin_of_buffer_ == end_of_buffer_ || bytes_left_ == 0) {
    const ssize_t count = bytes_left_ == 0 ? -1 : fill();
    if (count <= 0) {
      close_after_response_ = true;
      return count;
    }
  }
  const size_t count = std::min({size, end_of_buffer_ - begin_of_buffer_, bytes_left_});
  std::memcpy(data, buffer_.data() + begin_of_buffer_, count);
  begin_of_buffer_ += count;
  bytes_left_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  const auto deadline = Clock::now() + limits_.write_time;
  while (Clock::now() < deadline) {
    const ssize_t count = send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) return count;
    if (errno != EAGAIN && errno != EINTR) return -1;
    wait_for(socket_, POLLOUT, kSlice);
  }
  return -1;
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) name_of(address, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0) name_of(address, ip, port);
}

}  // namespace quatrain
