"""Removal of exact repetitions: runs of 50 words or more that occur twice in the corpus stay once.

The step is off by default and follows the deduplication, which compares whole documents.

    substrings/part-00000.parquet            documents without repeated runs, schema unchanged
    substrings/rejected/part-00000.parquet   documents of which too little is left: only_repeated, too_short
    substrings/cuts/part-00000.parquet       what was cut from which document

Source: Lee et al. 2022, Deduplicating Training Data Makes Language Models Better (ExactSubstr). Instead of a suffix
array of the whole corpus, winnowing finds the runs (Schleimer, Wilkerson, Aiken 2003), which needs bounded memory.
"""
