"""The main job: plan → chunks → documents → tokens → shards → manifest."""
