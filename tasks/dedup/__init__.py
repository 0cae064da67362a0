"""Drop documents that repeat another one: sketch -> candidate pairs -> exact verification -> clusters -> keep.

A candidate pair counts only once its exact Jaccard similarity is at the threshold, and it is verified *before* pairs
are joined to clusters: a hash collision or a chain of lookalikes can never delete a document by itself.

    dedup/part-00000.parquet            the documents that stay, schema as it came in
    dedup/rejected/part-00000.parquet   the others: exact_duplicate, near_duplicate, with the kept url in `detail`;
                                        …_earlier where an earlier crawl's document is kept instead
    dedup/sketch/part-00000.parquet     number, id, url, length, content hash and band hashes of each document
    dedup/pairs/part-00000.parquet      every candidate pair with its exact Jaccard, accepted or not
    dedup/clusters/part-00000.parquet   cluster, member, what became of it, what was kept instead
    dedup/dropped/part-00000.parquet    the dropped documents by number

A later crawl can be compared with what stays here (`dedup.earlier`): by the sketches, `dropped` and the texts.

Sources: Broder 1997 (MinHash), Leskovec et al., Mining of Massive Datasets, ch. 3 (banding); the stages follow
marin's and datatrove's, with the verification moved before the clustering.
"""

from tasks.dedup.audit import Cluster, Member, largest_clusters
from tasks.dedup.settings import DedupSettings
from tasks.dedup.step import check_earlier, dedup

__all__ = ["Cluster", "DedupSettings", "Member", "check_earlier", "dedup", "largest_clusters"]
