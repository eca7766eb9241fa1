/* The saved form of a sequence: little-endian, canonical (equal states give equal bytes), with version and checksum.
 *
 *   magic "DSRSEQ\r\n", u32 version, u32 header words, header words (u32 or F32 bits: configuration, fingerprint of
 *   the layer's tensors low word first, position),
 *   window rows oldest to newest, compressed rows, index keys, each followed by its scales if the caches are packed,
 *   for each compressor the projected kv and score rows that its state depends on, u64 checksum of all bytes before it.
 */
#include "block/layer.h"

#include <string.h>

enum {
    SAVE_VERSION = 2,
    N_CONFIG_WORDS = 16,
    N_LAYER_WORDS = N_CONFIG_WORDS + 2, /* that tell the layer */
    N_HEADER_WORDS = N_LAYER_WORDS + 1,
    LAYER_WORDS_AT = 16,
    MAGIC_BYTES = 8,
    CHECKSUM_BYTES = 8
};
enum { HEADER_BYTES = DSRI_FORM_HEADER_BYTES };
_Static_assert(HEADER_BYTES == LAYER_WORDS_AT + N_HEADER_WORDS * 4, "what a reader of a file takes first");

static const unsigned char magic[MAGIC_BYTES] = {'D', 'S', 'R', 'S', 'E', 'Q', '\r', '\n'};

static uint32_t word_of_float(float x)
{
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static void layer_words(const dsr_attention *layer, uint32_t words[N_LAYER_WORDS])
{
    const dsr_attention_config *c = &layer->config;
    const uint32_t all[N_LAYER_WORDS] = {(uint32_t)c->kind,
                                         c->hidden_size,
                                         c->n_heads,
                                         c->q_rank,
                                         c->o_groups,
                                         c->o_rank,
                                         c->n_index_heads,
                                         c->top_k,
                                         word_of_float(c->epsilon),
                                         word_of_float(c->scale),
                                         word_of_float(c->rope_theta),
                                         word_of_float(c->yarn_factor),
                                         word_of_float(c->yarn_original_context),
                                         word_of_float(c->yarn_beta_fast),
                                         word_of_float(c->yarn_beta_slow),
                                         (uint32_t)c->cache,
                                         (uint32_t)layer->fingerprint,
                                         (uint32_t)(layer->fingerprint >> 32)};
    memcpy(words, all, sizeof all);
}

static void put_u32(unsigned char *to, uint32_t x)
{
    for (uint32_t i = 0; i < 4; i++)
        to[i] = (unsigned char)(x >> (8 * i));
}

static uint32_t get_u32(const unsigned char *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void put_u64(unsigned char *to, uint64_t x)
{
    put_u32(to, (uint32_t)x);
    put_u32(to + 4, (uint32_t)(x >> 32));
}

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(const unsigned char *bytes, uint64_t n_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* One piece of the payload: rows of a ring, or plain rows, in device memory. */
typedef struct piece {
    uint64_t byte_offset; /* of row 0 in the sequence's buffer */
    uint64_t row_bytes;
    uint64_t first_row;
    uint64_t n_rows;
    uint64_t ring_rows; /* 0: plain */
} piece;

enum { MAX_PIECES = 2 * 3 + 2 * DSRI_N_COMPRESSORS };

/* Appends entries of a cache: their values, then their scales; returns the new number of pieces. */
static uint32_t add_entries(piece *pieces, uint32_t n, const dsri_sequence_cache *cache, uint64_t first,
                            uint64_t n_entries, uint64_t ring_rows)
{
    pieces[n++] = (piece){cache->values, cache->value_bytes, first, n_entries, ring_rows};
    if (cache->scale_bytes)
        pieces[n++] = (piece){cache->scales, cache->scale_bytes, first, n_entries, ring_rows};
    return n;
}

static uint32_t list_pieces(const dsr_attention *layer, const dsri_sequence_layout *l, uint32_t position,
                            piece pieces[MAX_PIECES])
{
    const uint32_t ratio = dsri_layer_ratio(layer);
    const uint64_t n_entries = ratio ? position / ratio : 0;
    const uint32_t n_window = position < DSR_WINDOW ? position : DSR_WINDOW;
    uint32_t n = add_entries(pieces, 0, &l->kv, position - n_window, n_window, DSRI_RING_ROWS);
    n = add_entries(pieces, n, &l->kv, DSRI_RING_ROWS, n_entries, 0);
    if (layer->compressors[DSRI_INDEX].dim)
        n = add_entries(pieces, n, &l->keys, 0, n_entries, 0);
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS; i++) {
        const dsri_layer_compressor *c = &layer->compressors[i];
        if (c->dim == 0)
            continue;
        const uint32_t first = dsri_state_first_token(ratio, position);
        const uint64_t row_bytes = (uint64_t)c->n_columns * sizeof(float);
        pieces[n++] = (piece){l->compressors[i].kv_history, row_bytes, first, position - first, c->history_rows};
        pieces[n++] = (piece){l->compressors[i].score_history, row_bytes, first, position - first, c->history_rows};
    }
    return n;
}

static uint64_t payload_bytes(const piece *pieces, uint32_t n_pieces)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n_pieces; i++)
        n_bytes += pieces[i].n_rows * pieces[i].row_bytes;
    return n_bytes;
}

/* Moves a piece between host memory and the buffer, run by run of consecutive rows. */
static dsr_status move_piece(dsr_buffer *buffer, const piece *p, unsigned char *host, int to_host)
{
    dsr_status status = DSR_OK;
    for (uint64_t done = 0; done < p->n_rows && status == DSR_OK;) {
        uint64_t row = p->first_row + done;
        uint64_t n = p->n_rows - done;
        if (p->ring_rows) {
            row %= p->ring_rows;
            n = n < p->ring_rows - row ? n : p->ring_rows - row;
        }
        const uint64_t offset = p->byte_offset + row * p->row_bytes;
        status = to_host ? dsr_buffer_read(buffer, offset, host + done * p->row_bytes, n * p->row_bytes)
                         : dsr_buffer_write(buffer, offset, host + done * p->row_bytes, n * p->row_bytes);
        done += n;
    }
    return status;
}

uint64_t dsr_sequence_save_bytes(const dsr_sequence *sequence)
{
    if (sequence == NULL)
        return 0;
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(sequence->attention, &sequence->storage->layout, sequence->position, pieces);
    return HEADER_BYTES + payload_bytes(pieces, n) + CHECKSUM_BYTES;
}

dsr_status dsr_sequence_save(const dsr_sequence *sequence, void *memory, uint64_t size_bytes)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (memory == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: memory is null");
    const uint64_t needed = dsr_sequence_save_bytes(sequence);
    if (size_bytes != needed)
        return dsri_fail(layer->context, DSR_ERR_SIZE, "sequence: memory holds %llu bytes, needs exactly %llu",
                         (unsigned long long)size_bytes, (unsigned long long)needed);
    dsr_status status = dsri_layer_check_usable(layer);
    if (status != DSR_OK)
        return status;
    unsigned char *bytes = memory;
    uint32_t words[N_LAYER_WORDS];
    layer_words(layer, words);
    memcpy(bytes, magic, MAGIC_BYTES);
    put_u32(bytes + MAGIC_BYTES, SAVE_VERSION);
    put_u32(bytes + MAGIC_BYTES + 4, N_HEADER_WORDS);
    for (uint32_t i = 0; i < N_LAYER_WORDS; i++)
        put_u32(bytes + LAYER_WORDS_AT + 4 * i, words[i]);
    put_u32(bytes + HEADER_BYTES - 4, sequence->position);

    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &sequence->storage->layout, sequence->position, pieces);
    uint64_t end = HEADER_BYTES;
    for (uint32_t i = 0; i < n && status == DSR_OK; i++) {
        status = move_piece(sequence->storage->buffer, &pieces[i], bytes + end, 1);
        end += pieces[i].n_rows * pieces[i].row_bytes;
    }
    put_u64(bytes + end, hash_bytes(bytes, end));
    return status;
}

static dsr_status bad_form(const dsr_sequence *sequence, const char *what)
{
    return dsri_fail(sequence->attention->context, DSR_ERR_FORMAT, "sequence: %s", what);
}

static const char not_a_form[] = "not a saved sequence, or cut off in its header";

/* Checks a saved form's header and reads from it the position and the bytes of the whole form. */
static dsr_status check_header(const dsr_sequence *sequence, const unsigned char *header, uint32_t *position,
                               uint64_t *size_bytes)
{
    const dsr_attention *layer = sequence->attention;
    if (memcmp(header, magic, MAGIC_BYTES) != 0)
        return bad_form(sequence, not_a_form);
    if (get_u32(header + MAGIC_BYTES) != SAVE_VERSION || get_u32(header + MAGIC_BYTES + 4) != N_HEADER_WORDS)
        return bad_form(sequence, "saved by a version with another form");
    uint32_t words[N_LAYER_WORDS];
    layer_words(layer, words);
    for (uint32_t i = 0; i < N_LAYER_WORDS; i++)
        if (get_u32(header + LAYER_WORDS_AT + 4 * i) != words[i])
            return bad_form(sequence, i < N_CONFIG_WORDS ? "saved by a layer of another configuration"
                                                         : "saved by a layer with other weights");
    const uint32_t saved_position = get_u32(header + HEADER_BYTES - 4);
    if (saved_position > DSRI_MAX_CONTEXT)
        return bad_form(sequence, "the saved position is out of range");
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &sequence->storage->layout, saved_position, pieces);
    *position = saved_position;
    *size_bytes = HEADER_BYTES + payload_bytes(pieces, n) + CHECKSUM_BYTES;
    return DSR_OK;
}

static dsr_status check_form(const dsr_sequence *sequence, const unsigned char *bytes, uint64_t size_bytes,
                             uint32_t *position)
{
    uint64_t needed;
    if (size_bytes < HEADER_BYTES)
        return bad_form(sequence, not_a_form);
    const dsr_status status = check_header(sequence, bytes, position, &needed);
    if (status != DSR_OK)
        return status;
    if (size_bytes != needed)
        return dsri_fail(sequence->attention->context, DSR_ERR_FORMAT,
                         "sequence: the saved sequence has %llu bytes, needs %llu at position %u",
                         (unsigned long long)size_bytes, (unsigned long long)needed, *position);
    unsigned char sum[CHECKSUM_BYTES];
    put_u64(sum, hash_bytes(bytes, size_bytes - CHECKSUM_BYTES));
    if (memcmp(sum, bytes + size_bytes - CHECKSUM_BYTES, CHECKSUM_BYTES) != 0)
        return bad_form(sequence, "the saved sequence is damaged: its checksum is wrong");
    return DSR_OK;
}

static dsr_status fill_storage(dsr_attention *layer, dsri_sequence_storage *storage, uint32_t position,
                               const unsigned char *payload)
{
    piece pieces[MAX_PIECES];
    const uint32_t n = list_pieces(layer, &storage->layout, position, pieces);
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < n && status == DSR_OK; i++) {
        /* move_piece only reads the host memory here. */
        status = move_piece(storage->buffer, &pieces[i], (unsigned char *)(uintptr_t)payload, 0);
        payload += pieces[i].n_rows * pieces[i].row_bytes;
    }
    return status == DSR_OK ? dsri_sequence_rebuild_states(layer, storage, position) : status;
}

/* Replaces the state by that of a checked form. */
static dsr_status load_form(dsr_sequence *sequence, const unsigned char *bytes, uint32_t position)
{
    dsr_attention *layer = sequence->attention;
    const uint32_t room = sequence->storage->max_context;
    dsri_sequence_storage *storage = NULL;
    dsr_status status = dsri_storage_create(layer, position > room ? position : room, &storage);
    if (status != DSR_OK)
        return status;
    status = fill_storage(layer, storage, position, bytes + HEADER_BYTES);
    if (status != DSR_OK) {
        dsri_storage_release(layer, storage);
        return status;
    }
    dsri_storage_release(layer, sequence->storage);
    sequence->storage = storage;
    sequence->position = position;
    sequence->max_truncate = 0;
    return DSR_OK;
}

dsr_status dsr_sequence_load(dsr_sequence *sequence, const void *memory, uint64_t size_bytes)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (memory == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: memory is null");
    uint32_t position = 0;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK)
        status = check_form(sequence, memory, size_bytes, &position);
    return status == DSR_OK ? load_form(sequence, memory, position) : status;
}

dsr_status dsri_sequence_form_bytes(const dsr_sequence *sequence, const unsigned char header[DSRI_FORM_HEADER_BYTES],
                                    uint64_t *size_bytes)
{
    uint32_t position;
    return check_header(sequence, header, &position, size_bytes);
}
