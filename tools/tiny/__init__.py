"""A small language of tasks whose answers are right or wrong, and the two tiny models trained on it.

`lexicon` holds the words, `grammar` the stories, `tasks` the examples with their checkers, `tokenizer`
builds the 512-token vocabulary and the chat templates, `corpus` turns examples into batches of token ids.
"""
