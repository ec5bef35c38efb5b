# expect E104
