// One client's socket, with limits that the HTTP library does not have: on the bytes and the time of a
// request, on the time of a write, and a way to see that the client has left.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <functional>

namespace quatrain {

struct ConnectionLimits {
  size_t header_bytes = 64 << 10;
  size_t body_bytes = 4 << 20;
  std::chrono::milliseconds header_time{10'000};
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds write_time{30'000};   // without any progress
  std::chrono::milliseconds idle_time{15'000};    // between two requests
  std::chrono::milliseconds hurried_time{2'000};  // for a whole request while other connections wait
};

class Connection : public httplib::Stream {
 public:
  /// Takes over the socket. `hurried`: other connections wait for a thread; `stopping`: the server ends.
  Connection(socket_t socket, const ConnectionLimits& limits, std::function<bool()> hurried,
             std::function<bool()> stopping);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Waits for the first byte of the next request. False: the connection should be closed.
  bool wait_for_request(bool first);
  /// The header is read; the body's limits hold from now on.
  void begin_body();
  /// Neither the peer nor an error has closed the connection.
  bool alive() const;
  /// Ends the connection after this response: its request was not read to the end. Set by itself when a read
  /// fails.
  void close_after_response() { close_after_response_ = true; }
  bool closes_after_response() const { return close_after_response_; }

  bool is_readable() const override;
  bool is_writable() const override { return alive(); }
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

  /// The connection that the calling thread serves; null outside a handler.
  static Connection* current();

 private:
  using Clock = std::chrono::steady_clock;
  ssize_t fill();

  socket_t socket_;
  const ConnectionLimits& limits_;
  std::function<bool()> hurried_, stopping_;
  Clock::time_point begin_, deadline_;
  size_t bytes_left_ = 0;
  bool close_after_response_ = false;
  std::array<char, 16384> buffer_;
  size_t begin_of_buffer_ = 0, end_of_buffer_ = 0;
};

}  // namespace quatrain
