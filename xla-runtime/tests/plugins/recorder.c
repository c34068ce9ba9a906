// A PJRT plugin that has no devices worth the name. It records the options that a client is created
// with and what the key-value callbacks answer; the record is its platform's version.
//
// Structs and the order of the table are those of pjrt_c_api.h, API 0.115, as far as they are used.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { size_t struct_size; void *extension; int major, minor; } Version;

typedef struct Error { int code; char *message; } Error;
typedef Error *CallbackError(int code, const char *message, size_t message_size);

typedef struct {
  size_t struct_size; void *extension;
  const char *name; size_t name_size;
  int type;
  union { const char *string; long long integer; const long long *integers; float number; char truth; } value;
  size_t value_size;
} NamedValue;

typedef struct {
  size_t struct_size; void *extension;
  const char *key; size_t key_size;
  int timeout_in_ms;
  CallbackError **callback_error;
  void *user;
  char *value; size_t value_size;
  void (*deleter)(char *);
} GetArgs;

typedef struct {
  size_t struct_size; void *extension;
  const char *key; size_t key_size;
  CallbackError **callback_error;
  void *user;
  char *value; size_t value_size;
  void (*deleter)(char *);
} TryGetArgs;

typedef struct {
  size_t struct_size; void *extension;
  const char *key; size_t key_size;
  const char *value; size_t value_size;
  CallbackError **callback_error;
  void *user;
} PutArgs;

typedef struct Client Client;

typedef struct { int id, process; Client *client; } Device;

struct Client {
  Error *(*get)(GetArgs *); void *get_user;
  int node, nodes;
  char record[4096];
  Device devices[16];
  Device *pointers[16];
};

typedef struct {
  size_t struct_size; void *extension;
  const NamedValue *options; size_t num_options;
  Error *(*get)(GetArgs *); void *get_user;
  Error *(*put)(PutArgs *); void *put_user;
  Client *client;
  Error *(*try_get)(TryGetArgs *); void *try_get_user;
} CreateArgs;

// ---- errors

static Error *make_error(int code, const char *message, size_t size) {
  Error *error = malloc(sizeof *error);
  error->code = code;
  error->message = strndup(message, size);
  return error;
}

static CallbackError *callback_error = make_error;

typedef struct { size_t struct_size; void *extension; Error *error; } DestroyErrorArgs;
typedef struct { size_t struct_size; void *extension; const Error *error; const char *message; size_t size; } MessageArgs;
typedef struct { size_t struct_size; void *extension; const Error *error; int code; } CodeArgs;

static void error_destroy(DestroyErrorArgs *a) { free(a->error->message); free(a->error); }
static void error_message(MessageArgs *a) { a->message = a->error->message; a->size = strlen(a->error->message); }
static Error *error_code(CodeArgs *a) { a->code = a->error->code; return NULL; }

// ---- the record

static void note(Client *c, const char *format, ...) {
  size_t used = strlen(c->record);
  va_list list;
  va_start(list, format);
  vsnprintf(c->record + used, sizeof c->record - used, format, list);
  va_end(list);
}

// Bytes, with zeros printed as 0.
static void note_value(Client *c, const char *what, const char *value, size_t size) {
  note(c, "%s=", what);
  for (size_t i = 0; i < size; i++) note(c, "%c", value[i] ? value[i] : '0');
  note(c, "\n");
}

static void note_error(Client *c, const char *what, Error *error) {
  note(c, "%s: error %d: %s\n", what, error->code, error->message);
  error_destroy(&(DestroyErrorArgs){sizeof(DestroyErrorArgs), NULL, error});
}

static void note_option(Client *c, const NamedValue *option) {
  note(c, "option %.*s=", (int)option->name_size, option->name);
  switch (option->type) {
    case 1: note(c, "%lld\n", option->value.integer); break;
    case 2:
      for (size_t i = 0; i < option->value_size; i++) note(c, "%lld,", option->value.integers[i]);
      note(c, "\n");
      break;
    default: note(c, "type %d\n", option->type);
  }
  if (!strncmp(option->name, "node_id", option->name_size)) c->node = (int)option->value.integer;
  if (!strncmp(option->name, "num_nodes", option->name_size)) c->nodes = (int)option->value.integer;
}

static void get(Client *c, const char *what, const char *key, int timeout_in_ms) {
  GetArgs args = {sizeof args, NULL, key, strlen(key), timeout_in_ms, &callback_error, c->get_user};
  Error *error = c->get(&args);
  if (error) { note_error(c, what, error); return; }
  note_value(c, what, args.value, args.value_size);
  args.deleter(args.value);
}

static void try_get(Client *c, CreateArgs *a, const char *what, const char *key) {
  TryGetArgs args = {sizeof args, NULL, key, strlen(key), &callback_error, a->try_get_user};
  Error *error = a->try_get(&args);
  if (error) { note_error(c, what, error); return; }
  note_value(c, what, args.value, args.value_size);
  args.deleter(args.value);
}

// ---- clients

static Error *client_create(CreateArgs *a) {
  if (a->struct_size < sizeof *a) return make_error(3, "arguments too short", 19);
  Client *c = calloc(1, sizeof *c);
  c->nodes = 1;
  for (size_t i = 0; i < a->num_options; i++) note_option(c, &a->options[i]);
  c->get = a->get;
  c->get_user = a->get_user;
  if (a->get && a->put && a->try_get) {
    char own[32], other[32];
    snprintf(own, sizeof own, "node/%d", c->node);
    snprintf(other, sizeof other, "node/%d", (c->node + 1) % c->nodes);
    char value[] = "from ?\0!";
    value[5] = (char)('0' + c->node);
    PutArgs put = {sizeof put, NULL, own, strlen(own), value, sizeof value - 1, &callback_error, a->put_user};
    Error *error = a->put(&put);
    if (error) { free(c); return error; }
    get(c, "own", own, 1000);
    get(c, "other", other, 20000);
    try_get(c, a, "tried own", own);
    try_get(c, a, "tried missing", "missing");
    get(c, "missing", "missing", 30);
  } else {
    note(c, "no store\n");
  }
  for (int i = 0; i < c->nodes && i < 16; i++) {
    c->devices[i] = (Device){i, i, c};
    c->pointers[i] = &c->devices[i];
  }
  a->client = c;
  return NULL;
}

typedef struct { size_t struct_size; void *extension; Client *client; } ClientArgs;
typedef struct { size_t struct_size; void *extension; Client *client; const char *text; size_t size; } TextArgs;
typedef struct { size_t struct_size; void *extension; Client *client; int index; } IndexArgs;
typedef struct { size_t struct_size; void *extension; Client *client; Device **devices; size_t count; } DevicesArgs;

static Error *client_destroy(ClientArgs *a) { free(a->client); return NULL; }

static Error *platform_name(TextArgs *a) { a->text = "recorder"; a->size = 8; return NULL; }

static Error *platform_version(TextArgs *a) {
  a->text = a->client->record;
  a->size = strlen(a->client->record);
  return NULL;
}

static Error *process_index(IndexArgs *a) { a->index = a->client->node; return NULL; }

static Error *all_devices(DevicesArgs *a) {
  a->devices = a->client->pointers;
  a->count = (size_t)a->client->nodes;
  return NULL;
}

static Error *own_devices(DevicesArgs *a) {
  a->devices = a->client->pointers + a->client->node;
  a->count = 1;
  return NULL;
}

// ---- devices; each is its own description

typedef struct { size_t struct_size; void *extension; Device *device; Device *description; } DescriptionArgs;
typedef struct { size_t struct_size; void *extension; Device *device; int number; } NumberArgs;
typedef struct { size_t struct_size; void *extension; Device *device; const char *text; size_t size; } DeviceTextArgs;
typedef struct { size_t struct_size; void *extension; Device *device; size_t count; const void *attributes; } AttributesArgs;
typedef struct { size_t struct_size; void *extension; Device *device; long long bytes_in_use; } MemoryArgs;

static Error *device_description(DescriptionArgs *a) { a->description = a->device; return NULL; }
static Error *device_id(NumberArgs *a) { a->number = a->device->id; return NULL; }
static Error *device_process(NumberArgs *a) { a->number = a->device->process; return NULL; }
static Error *device_text(DeviceTextArgs *a) { a->text = "recorder"; a->size = 8; return NULL; }
static Error *device_attributes(AttributesArgs *a) { a->count = 0; a->attributes = NULL; return NULL; }

// Asks the store again, as a plugin does when processes first exchange something: the length of what
// the other node has put.
static Error *memory_stats(MemoryArgs *a) {
  Client *c = a->device->client;
  char other[32];
  snprintf(other, sizeof other, "node/%d", (c->node + 1) % c->nodes);
  GetArgs args = {sizeof args, NULL, other, strlen(other), 1000, &callback_error, c->get_user};
  Error *error = c->get(&args);
  if (error) return error;
  a->bytes_in_use = (long long)args.value_size;
  args.deleter(args.value);
  return NULL;
}

static Error *initialize(void *a) { (void)a; return NULL; }

typedef const void *Function; // of a type of its own each

static struct {
  size_t struct_size; void *extension; Version version;
  Function error_destroy, error_message, error_code;
  Function initialize, plugin_attributes;
  Function event_destroy, event_is_ready, event_error, event_await, event_on_ready;
  Function client_create, client_destroy, platform_name, process_index, platform_version;
  Function devices, addressable_devices, lookup_device, lookup_addressable_device;
  Function addressable_memories, compile, default_assignment, from_host_buffer;
  Function description_id, description_process, description_attributes, description_kind;
  Function description_debug, description_to_string;
  Function device_description, device_is_addressable, device_hardware_id, device_memories;
  Function device_default_memory, device_memory_stats;
  Function others[90];
} api = {
  .struct_size = sizeof api,
  .version = {sizeof(Version), NULL, 0, 115},
  .error_destroy = error_destroy, .error_message = error_message, .error_code = error_code,
  .initialize = initialize,
  .client_create = client_create, .client_destroy = client_destroy,
  .platform_name = platform_name, .process_index = process_index,
  .platform_version = platform_version,
  .devices = all_devices, .addressable_devices = own_devices,
  .description_id = device_id, .description_process = device_process,
  .description_attributes = device_attributes, .description_kind = device_text,
  .description_debug = device_text,
  .device_description = device_description, .device_hardware_id = device_id,
  .device_memory_stats = memory_stats,
};

const void *GetPjrtApi(void) { return &api; }
