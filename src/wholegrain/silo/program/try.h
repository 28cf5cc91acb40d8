/* Each file with instructions that a machine may only claim to have tries them: 0 where they work. try.c calls all. */
int wholegrain_try_noise(void);
int wholegrain_try_draws(void);
