"""Steps of the recipes, one package each, as plain functions from manifests to a manifest.

Every package may import `core`, which imports no step, and `gpt2train`. Of the other steps a package imports only those
of its row, so that there is no cycle:

| package         | imports                                  |
| --------------- | ---------------------------------------- |
| `blacklist`     |                                          |
| `download`      |                                          |
| `discover`      | `download`                               |
| `commoncrawl`   | `discover`, `download`, `sources`        |
| `sources`       | `blacklist`, `download`                  |
| `boilerplate`   |                                          |
| `clean`         |                                          |
| `extract`       | `clean`, `download`, `sources`           |
| `decontaminate` | `clean`                                  |
| `cloze`         | `decontaminate`                          |
| `dedup`         |                                          |
| `data_steps`    | `clean`                                  |
| `substrings`    | `clean`, `dedup`                         |
| `shuffle`       |                                          |
| `tokenizer`     |                                          |
| `tokenize`      |                                          |
| `ready_tokens`  |                                          |
| `train`         | `ready_tokens`                           |
| `merge`         | `outputs`                                |
| `evaluate`      |                                          |
| `finetune`      |                                          |
| `report`        | `cloze`, `dedup`, `download`, `evaluate` |
| `report`        | `extract`, `sources`                     |
| `outputs`       | `boilerplate`, `clean`, `cloze`          |
| `outputs`       | `data_steps`, `decontaminate`, `dedup`   |
| `outputs`       | `download`, `extract`, `shuffle`         |
| `outputs`       | `sources`, `substrings`, `tokenize`      |
| `outputs`       | `tokenizer`                              |

`discover` requests sitemaps and `commoncrawl` pages as politely as `download`, whose page format `commoncrawl` has too;
`sources` reads archives with the rules of `blacklist` and the page format of `download`; `extract` reads pages of any
source, and its prefilter applies the limits of `clean`; `decontaminate` counts tokens, and `cloze` finds n-grams, with
the code of the step before; `data_steps` rejects documents as the filters of `clean` do; `substrings` counts tokens as
`clean` and finds words as `dedup`; `train` reads the files that `ready_tokens` has opened; `report` shows the results
of `cloze`, `dedup`, `download` and `evaluate`, and what `extract` drops of pages that `sources` reads.

`outputs` is no step: it has the tools on a finished output (`browse`, `forget`, `passport`, `verify`). `passport`
writes sections of the card of `merge`, `verify` does the steps of a corpus again, and `forget` rewrites the files of
`download` and `sources` and finds texts as `decontaminate` does.
"""
