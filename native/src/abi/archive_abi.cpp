// The entry points that work on archives.
#include "archive/archive.h"
#include "archive/recall.h"
#include "archive/refill.h"
#include "archive/restore.h"
#include "edgekv_archive.h"
#include "hooks/given.h"
#include "hooks/status.h"

#include <algorithm>

using namespace edgekv;

struct edgekv_recall_work {
    Recall recall;
};

enum edgekv_status edgekv_archive_open(const struct edgekv_cache * cache, int32_t fd, int32_t begin, uint64_t limit_bytes,
                                       struct edgekv_archive ** archive, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive, "cache or archive is NULL");
        *archive = new edgekv_archive(*cache, fd, begin, limit_bytes);
    });
}

enum edgekv_status edgekv_archive_read(const struct edgekv_cache * cache, int32_t fd, uint64_t offset, int32_t begin, int32_t end,
                                       struct edgekv_archive ** archive, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive, "cache or archive is NULL");
        *archive = new edgekv_archive(*cache, fd, offset, begin, end);
    });
}

enum edgekv_status edgekv_archive_copy(const struct edgekv_archive * archive, struct edgekv_archive ** copy, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive && copy, "archive or copy is NULL");
        *copy = new edgekv_archive(*archive);
    });
}

enum edgekv_status edgekv_archive_branch(struct edgekv_archive * archive, const struct edgekv_cache * cache, int32_t end, int32_t fd,
                                         uint64_t limit_bytes, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive && cache, "archive or cache is NULL");
        archive->branch(*cache, end, fd, limit_bytes);
    });
}

enum edgekv_status edgekv_archive_resume(struct edgekv_archive * archive, int32_t fd, uint64_t offset, int32_t first, int32_t end,
                                         uint64_t limit_bytes, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive, "archive is NULL");
        archive->resume(fd, offset, first, end, limit_bytes);
    });
}

void edgekv_archive_free(struct edgekv_archive * archive) { delete archive; }

enum edgekv_status edgekv_archive_append(struct edgekv_archive * archive, const struct edgekv_cache * cache, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive && cache, "archive or cache is NULL");
        archive->take(*cache, 0);
        archive->write();
    });
}

enum edgekv_status edgekv_archive_take(struct edgekv_archive * archive, const struct edgekv_cache * cache, uint32_t n_kept, char * err,
                                       size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive && cache, "archive or cache is NULL");
        archive->take(*cache, n_kept);
    });
}

enum edgekv_status edgekv_archive_write(struct edgekv_archive * archive, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(archive, "archive is NULL");
        archive->write();
    });
}

void edgekv_archive_cut(struct edgekv_archive * archive, int32_t end) {
    if (archive != nullptr) {
        archive->cut(end);
    }
}

uint32_t edgekv_archive_n_taken(const struct edgekv_archive * archive) { return archive == nullptr ? 0 : archive->n_taken(); }
int32_t  edgekv_archive_begin(const struct edgekv_archive * archive) { return archive == nullptr ? 0 : archive->begin(); }
int32_t  edgekv_archive_end(const struct edgekv_archive * archive) { return archive == nullptr ? 0 : archive->end(); }
uint64_t edgekv_archive_written_bytes(const struct edgekv_archive * archive) { return archive == nullptr ? 0 : archive->written_bytes(); }

uint64_t edgekv_archive_segment_bytes(const struct edgekv_shape * shape) {
    constexpr uint64_t marks = SegmentFile::mark_bytes(false) + SegmentFile::mark_bytes(true);
    return shape == nullptr ? 0 : SegmentFile::n_tokens * (shape->cell_bytes + shape->n_head_total * marks);
}

uint64_t edgekv_archive_segment_size(const struct edgekv_archive * archive) {
    return archive == nullptr ? 0 : archive->file().segment_bytes();
}

void edgekv_archive_place(const struct edgekv_archive * archive, int32_t position, int32_t * fd, uint64_t * offset) {
    if (archive != nullptr && fd != nullptr && offset != nullptr) {
        *fd     = archive->file().fd(position);
        *offset = archive->file().segment_begin(position);
    }
}

enum edgekv_status edgekv_cache_recall(struct edgekv_cache * cache, const struct edgekv_archive * archive,
                                       const struct edgekv_recall_params * params, struct edgekv_recall * result, char * err,
                                       size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive && params && result, "cache, archive, params or result is NULL");
        cache->drop_draft();
        Recall recall(*cache, *archive, given(*params));
        recall.scan(recall.n_heads_left());
        *result = recall.commit(*cache);
    });
}

enum edgekv_status edgekv_recall_begin(struct edgekv_cache * cache, const struct edgekv_archive * archive,
                                       const struct edgekv_recall_params * params, struct edgekv_recall_work ** work, uint32_t * n_left,
                                       char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive && params && work && n_left, "cache, archive, params, work or n_left is NULL");
        cache->drop_draft();
        *work   = new edgekv_recall_work{ Recall(*cache, *archive, given(*params)) };
        *n_left = (*work)->recall.n_heads_left();
    });
}

enum edgekv_status edgekv_recall_scan(struct edgekv_recall_work * work, uint32_t n_heads, uint32_t * n_left, char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(work && n_left, "work or n_left is NULL");
        work->recall.scan(n_heads);
        *n_left = work->recall.n_heads_left();
    });
}

enum edgekv_status edgekv_recall_finish(struct edgekv_recall_work * work, struct edgekv_cache * cache, struct edgekv_recall * result,
                                        char * err, size_t err_size) {
    return guard(err, err_size, [&] {
        require(work && cache && result, "work, cache or result is NULL");
        *result = work->recall.commit(*cache);
    });
}

size_t edgekv_recall_needed(const struct edgekv_recall_work * work, uint32_t * counts) { return work->recall.n_needed(counts); }

void edgekv_recall_needed_positions(const struct edgekv_recall_work * work, int32_t * positions) { work->recall.write_needed(positions); }

void edgekv_recall_free(struct edgekv_recall_work * work) { delete work; }

enum edgekv_status edgekv_cache_refill(struct edgekv_cache * cache, const struct edgekv_archive * archive, uint32_t n, char * err,
                                       size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive, "cache or archive is NULL");
        refill(*cache, *archive, n);
    });
}

enum edgekv_status edgekv_cache_restore_archived(struct edgekv_cache * cache, const struct edgekv_archive * archive, char * err,
                                                 size_t err_size) {
    return guard(err, err_size, [&] {
        require(cache && archive, "cache or archive is NULL");
        restore_archived(*cache, *archive);
    });
}

uint64_t edgekv_archive_estimate_bytes(const struct edgekv_shape * shape, uint32_t n_probe, uint32_t n_cells, uint32_t n_kept) {
    if (shape == nullptr) {
        return 0;
    }
    return edgekv_archive::taken_bytes(*shape, n_kept) + Recall::estimate_bytes(*shape, n_probe, n_cells);
}
