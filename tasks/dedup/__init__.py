"""Deduplication in stages: MinHash sketches, LSH candidate pairs, exact verification, clusters, kept documents.

A candidate pair counts only if its exact Jaccard similarity reaches the threshold, and it is verified *before* pairs
are joined to clusters: a hash collision or a chain of similar documents can never delete a document by itself.

    dedup/part-00000.parquet            kept documents, schema unchanged
    dedup/rejected/part-00000.parquet   dropped documents: exact_duplicate, near_duplicate, with the kept url in
                                        `detail`; …_earlier if a document of a previous crawl is kept instead
    dedup/sketch/part-00000.parquet     number, id, url, length, content hash and band hashes of each document
    dedup/pairs/part-00000.parquet      every candidate pair with its exact Jaccard, accepted or not
    dedup/clusters/part-00000.parquet   cluster, member, reason of its drop, document that was kept instead
    dedup/dropped/part-00000.parquet    dropped documents by number
    dedup/lost/part-00000.parquet       characters of each dropped near duplicate, and those that its kept one lacks
    dedup/sources/part-00000.parquet    documents and dropped ones of each host and source that lost any

A later crawl can be compared with the kept documents (`dedup.previous`) by the sketches, `dropped` and the texts.

Sources: Broder 1997 (MinHash); Leskovec et al., Mining of Massive Datasets, ch. 3 (banding). The stages follow marin
and datatrove, with the verification moved before the clustering.
"""
