// Gloo's TCP transport behind C functions: connected pairs, and messages between them.
//
// Every function catches what Gloo throws and hands the text back: no exception leaves this file.
// A function that returns int returns one of `Status`.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace {

enum Status : int { kDone = 0, kAborted = 1, kFailed = 2 };

using Milliseconds = std::chrono::milliseconds;

template <typename Body>
int guarded(char* error, size_t capacity, Body&& body) noexcept {
  const char* text = "an exception of an unknown type";
  try {
    return body();
  } catch (const std::exception& e) {
    text = e.what();
    std::snprintf(error, capacity, "%s", text);
  } catch (...) {
    std::snprintf(error, capacity, "%s", text);
  }
  return kFailed;
}

// Gloo's own collectives take a context of this type; its parts are only settable from inside.
class Whole : public ::gloo::Context {
 public:
  Whole(std::shared_ptr<gloo::transport::Device> device,
        std::shared_ptr<gloo::transport::Context> context)
      : ::gloo::Context(context->rank, context->size) {
    device_ = std::move(device);
    transportContext_ = std::move(context);
  }
};

}  // namespace

extern "C" {

struct XlaGlooContext {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
};

struct XlaGlooMessage {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool receives;
};

// Listens for every peer, at a numeric address or, if it is not empty, at a network interface.
int xla_gloo_listen(int rank, int size, const char* address, const char* interface,
                    int64_t connect_ms, XlaGlooContext** out, char* error, size_t capacity) {
  return guarded(error, capacity, [&] {
    gloo::transport::tcp::attr attr;
    attr.hostname = address;
    attr.iface = interface;
    auto whole = std::make_unique<XlaGlooContext>();
    whole->device = gloo::transport::tcp::CreateDevice(attr);
    whole->context = whole->device->createContext(rank, size);
    // A pair waits for its connection five times as long as this.
    whole->context->setTimeout(Milliseconds(std::max<int64_t>(connect_ms / 5, 1)));
    for (int peer = 0; peer < size; peer++) {
      if (peer != rank) {
        whole->context->createPair(peer);
      }
    }
    *out = whole.release();
    return kDone;
  });
}

// Copies the address at which a peer reaches this process; `length` is the room there is, and then
// what was needed.
int xla_gloo_address(XlaGlooContext* whole, int peer, uint8_t* out, size_t* length, char* error,
                     size_t capacity) {
  return guarded(error, capacity, [&] {
    const std::vector<char> bytes = whole->context->getPair(peer)->address().bytes();
    std::copy_n(bytes.begin(), std::min(bytes.size(), *length), out);
    *length = bytes.size();
    return kDone;
  });
}

// Connects to a peer, which does the same at the address that it got from this process.
int xla_gloo_connect(XlaGlooContext* whole, int peer, const uint8_t* address, size_t length,
                     char* error, size_t capacity) {
  return guarded(error, capacity, [&] {
    whole->context->getPair(peer)->connect(std::vector<char>(address, address + length));
    return kDone;
  });
}

// Starts a message. The memory must stay until the message is freed.
int xla_gloo_start(XlaGlooContext* whole, bool receives, int peer, uint64_t slot, uint8_t* memory,
                   size_t length, XlaGlooMessage** out, char* error, size_t capacity) {
  return guarded(error, capacity, [&] {
    auto message = std::make_unique<XlaGlooMessage>();
    message->buffer = whole->context->createUnboundBuffer(memory, length);
    message->receives = receives;
    if (receives) {
      message->buffer->recv(peer, slot, 0, length);
    } else {
      message->buffer->send(peer, slot, 0, length);
    }
    *out = message.release();
    return kDone;
  });
}

// Waits for a message. When the time is over Gloo closes every connection of the context.
int xla_gloo_wait(XlaGlooMessage* message, int64_t ms, char* error, size_t capacity) {
  return guarded(error, capacity, [&] {
    const bool done = message->receives ? message->buffer->waitRecv(Milliseconds(ms))
                                        : message->buffer->waitSend(Milliseconds(ms));
    return done ? kDone : kAborted;
  });
}

// Ends the wait for a message that a thread is in, or the next one.
void xla_gloo_abort(XlaGlooMessage* message) {
  if (message->receives) {
    message->buffer->abortWaitRecv();
  } else {
    message->buffer->abortWaitSend();
  }
}

// After this nothing touches the message's memory any more.
void xla_gloo_free_message(XlaGlooMessage* message) { delete message; }

// Resets every connection, so that the peers notice.
void xla_gloo_close(XlaGlooContext* whole) {
  char ignored[1];
  for (int peer = 0; peer < whole->context->size; peer++) {
    guarded(ignored, sizeof(ignored), [&] {
      if (auto& pair = whole->context->getPair(peer)) {
        pair->close();
      }
      return kDone;
    });
  }
}

// No message may be left.
void xla_gloo_free(XlaGlooContext* whole) { delete whole; }

// The sum of all processes' numbers by Gloo's own algorithm, in place: what ours is measured
// against.
int xla_gloo_own_all_reduce(XlaGlooContext* whole, uint32_t tag, float* numbers, size_t length,
                            int64_t ms, char* error, size_t capacity) {
  return guarded(error, capacity, [&] {
    gloo::AllreduceOptions options(std::make_shared<Whole>(whole->device, whole->context));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(numbers, length);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(tag);
    options.setTimeout(Milliseconds(ms));
    gloo::allreduce(options);
    return kDone;
  });
}

}  // extern "C"
